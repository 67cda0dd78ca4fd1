-- Tests of db/functions/ingest_runs.sql: runs, who owns them, and how they end.

begin;
select plan(57);

create function pg_temp.begin(p_vault text default '/v') returns bigint language sql as
$$ select rag.begin_run(p_vault, 'fake', 'm', 1024, '{"pid": 12, "host": "desk"}') $$;

create function pg_temp.last_run() returns bigint language sql as
'select max(r.id) from rag.ingest_runs as r';

-- a run as a process that died has left it: nobody holds its lock
create function pg_temp.dead(p_vault text default '/v') returns bigint language sql as $$
    insert into rag.ingest_runs (
        vault_path, embedding_provider, embedding_model, embedding_dim, status
    ) values (p_vault, 'fake', 'm', 1024, 'running') returning id
$$;

create function pg_temp.item(
    p_path text, p_status text, p_action text default 'add', p_error text default null
) returns void language sql as $$
    insert into rag.ingest_run_items (run_id, relative_path, action, status, reason, error)
    values (pg_temp.last_run(), p_path, p_action, p_status, 'test', p_error)
$$;

-- begin_run ---------------------------------------------------------------------------------------

select throws_ok(
    format('select rag.begin_run(''/v'', ''fake'', ''m'', %s)', d), 'RG004',
    format('embedding dimension must be 1024, got %s', d), format('dimension %s is refused', d)
)
from unnest(array['768', 'null']) as u (d);
select is_empty('select r.id from rag.ingest_runs as r', 'a refused run leaves no row');

select is(pg_temp.begin(), pg_temp.last_run(), 'the number of the new run is returned');
select row_eq(
    $$ select r.vault_path, r.embedding_provider, r.embedding_model, r.embedding_dim, r.status,
        r.error_summary, r.metadata
    from rag.ingest_runs as r $$,
    row('/v'::text, 'fake'::text, 'm'::text, 1024, 'running'::text, null::text,
        '{"pid": 12, "host": "desk"}'::jsonb),
    'a new run is running, with its configuration and who runs it'
);
select ok(
    (select r.started_at is not null and r.finished_at is null from rag.ingest_runs as r),
    'a new run has begun and has not ended'
);
select row_eq(
    $$ select r.documents_added, r.documents_updated, r.documents_deleted, r.documents_skipped,
        r.documents_moved, r.documents_embedded, r.documents_failed, r.chunks_written,
        r.embeddings_written, r.embeddings_reused
    from rag.ingest_runs as r $$,
    row(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 'all counters begin at 0'
);
select ok(rag.run_is_alive(pg_temp.last_run()), 'the run of this session is alive');
select ok(not rag.run_is_alive(pg_temp.last_run() + 1), 'a run that does not exist is not alive');

select throws_ok(
    'select pg_temp.begin()', 'RG006', null, 'a second run of the vault is refused'
);
select throws_like(
    'select pg_temp.begin()', 'run % of /v is at work (process 12 on desk, since 20%',
    'the refusal names the process that is at work'
);
select lives_ok($$ select pg_temp.begin('/v2') $$, 'a run of another vault may begin');
select lives_ok($$ select pg_temp.begin('/v/') $$, 'vaults are compared as they are written');
select is(
    (select count(*) from rag.ingest_runs as r where r.status = 'running'), 3::bigint,
    'no living run is closed by another one'
);

-- Dead runs ---------------------------------------------------------------------------------------

select is(rag.close_dead_runs(), 0, 'living runs are not closed');
do $$ begin
    perform pg_temp.dead('/d');
    perform pg_temp.dead('/d');
    perform pg_temp.dead('/e');
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values ('/d', '/d/a.md', 'a.md', 'a');
end $$;
select lives_ok($$ select pg_temp.begin('/d') $$, 'dead runs do not keep a new one out');
select results_eq(
    $$ select r.status, r.error_summary, r.finished_at is null
    from rag.ingest_runs as r where r.vault_path = '/d' order by r.id $$,
    $$ values ('failed', 'interrupted', false), ('failed', 'interrupted', false),
        ('running', null, true) $$,
    'dead runs of the vault end as failed, with the reason interrupted'
);
select is(
    (select r.status from rag.ingest_runs as r where r.vault_path = '/e'), 'failed',
    'dead runs of other vaults end too: their vault may never be ingested again'
);
select is(
    (select count(*) from rag.documents as d where d.vault_path = '/d'), 1::bigint,
    'what a dead run had stored stays'
);
select is(rag.close_dead_runs('/none'), 0, 'a vault without runs has none to close');
do $$ begin
    perform pg_temp.dead('/e');
end $$;
select is(rag.close_dead_runs('/e'), 1, 'dead runs of one vault can be closed');
do $$ begin
    perform pg_temp.dead('/f');
    perform pg_temp.dead('/g');
end $$;
select is(rag.close_dead_runs(), 2, 'dead runs of all vaults can be closed');
select is(rag.close_dead_runs(), 0, 'a closed run is not closed again');

-- running_run -------------------------------------------------------------------------------------

select is((rag.running_run(r.id)).vault_path, '/v', 'a running run is found')
from rag.ingest_runs as r where r.vault_path = '/v';
select throws_ok(
    format('select rag.running_run(%s)', id), 'RG005', 'there is no running run ' || id,
    format('there is no run %s', id)
)
from unnest(array['0', 'null']) as u (id);
select throws_ok(
    format('select rag.running_run(%s)', r.id), 'RG005', null, 'an ended run is not running'
)
from rag.ingest_runs as r where r.vault_path = '/e';

-- finish_run --------------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.begin('/ok');
    perform pg_temp.item('a.md', 'done');
    perform pg_temp.item('b.md', 'done', 'skip');
    perform pg_temp.item('c.md', 'done', 'delete');
end $$;
select row_eq(
    $$ select r.id, r.vault_path, r.status, r.error_summary, r.finished_at >= r.started_at
    from rag.finish_run(pg_temp.last_run()) as r $$,
    row(pg_temp.last_run(), '/ok'::text, 'success'::text, null::text, true),
    'a run whose items are all done is a success, and its row comes back'
);
select is(
    (select r.status from rag.ingest_runs as r where r.vault_path = '/ok'), 'success',
    'the end is stored'
);
select ok(not rag.run_is_alive(pg_temp.last_run()), 'an ended run gives its lock back');
select throws_ok(
    format('select * from rag.finish_run(%s)', pg_temp.last_run()), 'RG005', null,
    'a run ends once'
);
select throws_ok(
    format('select * from rag.fail_run(%s, ''x'')', pg_temp.last_run()), 'RG005', null,
    'an ended run cannot fail any more'
);
select lives_ok($$ select pg_temp.begin('/ok') $$, 'the vault is free again');
select is(
    (select r.status from rag.finish_run(pg_temp.last_run()) as r), 'success',
    'a run with nothing to do is a success'
);

create function pg_temp.finished() returns text language plpgsql as $$
begin
    return (
        select r.status || ': ' || r.error_summary from rag.finish_run(pg_temp.last_run()) as r
    );
end $$;

do $$ begin
    perform pg_temp.begin('/failed');
    perform pg_temp.item('z.md', 'failed', 'change', 'bad byte');
    perform pg_temp.item('a.md', 'failed', 'add', 'no permission');
    perform pg_temp.item('b.md', 'done');
end $$;
select results_eq(
    'select f.relative_path, f.error from rag.list_open_items(pg_temp.last_run()) as f',
    $$ values ('z.md', 'bad byte'), ('a.md', 'no permission') $$,
    'failed files are listed with the reason, in the order of the plan'
);
select is(
    pg_temp.finished(), 'failed: 2 failed: z.md, a.md', 'a failed file fails the run'
);
select results_eq(
    'select f.relative_path from rag.list_open_items(pg_temp.last_run()) as f',
    $$ values ('z.md'), ('a.md') $$, 'failed files are still listed after the end'
);
select is_empty('select * from rag.list_open_items(0)', 'no run has no failed files');

do $$ begin
    perform pg_temp.begin('/withheld');
    perform pg_temp.item('a.md', 'done');
    perform pg_temp.item('b.md', 'pending', 'delete');
    perform pg_temp.item('c.md', 'pending', 'delete');
end $$;
select is(
    pg_temp.finished(), 'failed: 2 deletions withheld', 'withheld deletions fail the run'
);
do $$ begin
    perform pg_temp.begin('/undone');
    perform pg_temp.item('a.md', 'pending', 'move');
end $$;
select is(pg_temp.finished(), 'failed: 1 left undone', 'work left undone fails the run');
do $$ begin
    perform pg_temp.begin('/all');
    perform pg_temp.item('a.md', 'failed', 'add', 'x');
    perform pg_temp.item('b.md', 'pending', 'delete');
    perform pg_temp.item('c.md', 'pending', 'embed');
end $$;
select is(
    pg_temp.finished(), 'failed: 1 failed: a.md; 1 deletions withheld; 1 left undone',
    'all reasons are given'
);

-- fail_run ----------------------------------------------------------------------------------------

do $$ begin perform pg_temp.begin('/broken'); end $$;
select row_eq(
    $$ select r.status, r.error_summary, r.finished_at is null
    from rag.fail_run(pg_temp.last_run(), 'the disk is full') as r $$,
    row('failed'::text, 'the disk is full'::text, false), 'a broken run ends with the reason'
);
select ok(not rag.run_is_alive(pg_temp.last_run()), 'a broken run gives its lock back');
do $$ begin
    perform pg_temp.begin('/long');
    perform rag.fail_run(pg_temp.last_run(), repeat('x', 5000));
end $$;
select is(
    (select length(r.error_summary) from rag.ingest_runs as r where r.id = pg_temp.last_run()),
    2000, 'a long reason is cut'
);
select throws_ok(
    format('select * from %s', call), 'RG005', 'there is no running run 0', call || ' is refused'
)
from unnest(array[
    'rag.finish_run(0)', 'rag.fail_run(0, ''x'')', 'rag.end_run(0, ''failed'', ''x'')'
]) as u (call);

do $$ begin
    perform pg_temp.begin('/durable');
    perform set_config('synchronous_commit', 'off', true);
    perform rag.finish_run(pg_temp.last_run());
end $$;
select is(
    current_setting('synchronous_commit'), 'on',
    'the end of a run is on disk when it is told, whatever the session has set'
);

-- A run that another session takes over -----------------------------------------------------------

do $$ begin perform pg_temp.dead('/other'); end $$;
select is(
    (select r.status from rag.finish_run(pg_temp.last_run()) as r), 'success',
    'a session that does not hold the lock of a run can end it'
);

-- end_run: the terms of chunks ----------------------------------------------------------------------

do $$ begin
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values ('/hand', '/hand/a.md', 'a.md', 'd');
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, content_hash
    )
    select d.id, i, 'zebra', d.file_path, d.relative_path, 'h'
    from rag.documents as d, generate_series(0, 1) as i where d.vault_path = '/hand';
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.chunk_index = 0;
    update rag.chunks set has_terms = true where chunk_index = 0;
    perform pg_temp.dead('/other');
    perform rag.fail_run(pg_temp.last_run(), 'x');
end $$;
select is(
    (select count(*) from rag.chunk_terms as t join rag.chunks as c on c.id = t.chunk_id
    where c.has_terms), 2::bigint, 'a run that ends gives chunks inserted by hand their terms'
);
select results_eq(
    $$ select k.scope, k.chunks from rag.term_counts as k where k.dim = rag.term_dim('zebra') $$,
    $$ values ('/hand', 2::bigint) $$, 'and counts all that is not counted'
);
select is_empty('select u.id from rag.uncounted_terms as u', 'nothing is left to count');

-- run_lock_key ------------------------------------------------------------------------------------

select is(
    (select count(distinct rag.run_lock_key(n)) from generate_series(1, 1000) as g (n)),
    1000::bigint, 'each run has a lock of its own'
);
do $$ begin
    perform pg_advisory_lock(rag.run_lock_key(n)) from generate_series(1001, 1020) as g (n);
end $$;
select is_empty(
    'select n from generate_series(1001, 1020) as g (n) where not rag.run_is_alive(n)',
    'a run is alive while its lock is held, whatever the sign of the key'
);

-- The table ---------------------------------------------------------------------------------------

select throws_ok(
    $$ update rag.ingest_runs as r set status = 'done' $$, '23514', null,
    'a run is running, success or failed'
);
delete from rag.ingest_runs as r where r.vault_path = '/all';
select is_empty(
    $$ select i.id from rag.ingest_run_items as i
    where not exists (select 1 from rag.ingest_runs as r where r.id = i.run_id) $$,
    'a deleted run takes its items along'
);

select * from finish();
rollback;
