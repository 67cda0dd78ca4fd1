-- Tests of db/functions/views.sql: what a DBA reads in psql.

begin;
select plan(6);

select is_empty('select * from rag.run_log', 'no run has left nothing to read');

insert into rag.ingest_runs (
    id, vault_path, embedding_provider, embedding_model, embedding_dim, status, started_at
)
values
(1, '/v', 'fake', 'm', 1024, 'failed', '2026-01-02'),
(2, '/w', 'fake', 'm', 1024, 'running', '2026-01-03'),
(3, '/none', 'fake', 'm', 1024, 'success', '2026-01-04');
insert into rag.ingest_run_items (
    run_id, relative_path, action, status, reason, moved_from, chunks_written, embeddings_written,
    embeddings_reused, error, updated_at
)
values
(1, 'a.md', 'add', 'done', 'new file', null, 3, 2, 1, null, '2026-01-02 01:00'),
(1, 'b.md', 'skip', 'done', 'unchanged', null, 0, 0, 0, null, '2026-01-02'),
(1, 'c.md', 'change', 'failed', 'content changed', null, 0, 0, 0, 'bad byte', '2026-01-02'),
(1, 'd.md', 'delete', 'pending', 'withheld: no file', null, 0, 0, 0, null, '2026-01-02'),
(1, 'locked/', 'skip', 'failed', 'it cannot be read', null, 0, 0, 0, 'no rights', '2026-01-02'),
(2, 'e.md', 'move', 'pending', 'same content', 'old.md', 0, 0, 0, null, '2026-01-03');

select results_eq(
    $$ select l.run_id, l.vault_path, l.started_at, l.run_status, l.relative_path, l.action,
        l.status, l.reason, l.moved_from, l.chunks_written, l.embeddings_written,
        l.embeddings_reused, l.error, l.updated_at
    from rag.run_log as l where l.relative_path = 'a.md' $$,
    $$ values (1::bigint, '/v', '2026-01-02'::timestamptz, 'failed', 'a.md', 'add', 'done',
        'new file', null::text, 3, 2, 1, null::text, '2026-01-02 01:00'::timestamptz) $$,
    'a row has the run and all that was done with the file'
);
select set_eq(
    'select l.run_id, l.relative_path, l.error from rag.run_log as l',
    $$ values (1::bigint, 'a.md', null), (1, 'c.md', 'bad byte'), (1, 'd.md', null),
        (1, 'locked/', 'no rights'), (2, 'e.md', null) $$,
    'all that runs did or could not do is in the log, a folder that cannot be read too'
);
select is_empty(
    $$ select * from rag.run_log as l where l.relative_path = 'b.md' $$,
    'unchanged files are left out'
);
select results_eq(
    $$ select l.run_status, l.moved_from from rag.run_log as l where l.run_id = 2 $$,
    $$ values ('running', 'old.md') $$, 'a move names the former path'
);
select is_empty(
    $$ select * from rag.run_log as l where l.vault_path = '/none' $$,
    'a run that did nothing has no row'
);

select * from finish();
rollback;
