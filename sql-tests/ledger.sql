-- Tests of db/functions/ledger.sql: looking at runs and vaults, taking vaults out, and the check that
-- all fits together.

begin;
select plan(126);

create function pg_temp.run() returns bigint language sql as
'select max(r.id) from rag.ingest_runs as r';

-- a run as a process that died has left it: nobody holds its lock
create function pg_temp.dead(p_vault text) returns bigint language sql as $$
    insert into rag.ingest_runs (
        vault_path, embedding_provider, embedding_model, embedding_dim, status
    ) values (p_vault, 'fake', 'm', 1024, 'running') returning id
$$;

create function pg_temp.vec() returns public.vector language sql immutable
as 'select array_fill(0.03125::real, array[1024])::public.vector';

-- one run of a vault up to its end: each file given as 'path=hash' gets p_chunks chunks, whose text
-- and embedded text are of their own; '!path' in p_failed fails
create function pg_temp.ingest(
    p_vault text, p_files text[], p_provider text default 'fake', p_model text default 'm',
    p_chunks integer default 2, p_failed text[] default '{}', p_finish boolean default true
) returns bigint language plpgsql as $$
declare
    v_run bigint;
    v_item record;
begin
    v_run := rag.begin_run(p_vault, p_provider, p_model, 1024, '{"pid": 12, "host": "desk"}');
    for v_item in
        select r.* from rag.record_plan(v_run, (
            select coalesce(jsonb_agg(jsonb_build_object(
                'path', split_part(f.entry, '=', 1), 'hash', split_part(f.entry, '=', 2)
            )), '[]') from unnest(p_files) as f (entry)
        )) as r where r.action <> 'delete'
    loop
        if v_item.relative_path = any(p_failed) then
            perform rag.fail_item(v_run, v_item.relative_path, 'bad byte in ' || v_item.relative_path);
        elsif v_item.action = 'embed' then
            perform rag.add_embeddings(
                v_run, v_item.relative_path, array_agg(l.chunk_id),
                array_agg(p_provider || p_model || l.chunk_id), array_agg(pg_temp.vec())
            ) from rag.list_chunk_inputs(v_run, v_item.relative_path) as l;
        else
            perform rag.replace_document(
                v_run, v_item.relative_path,
                jsonb_build_object(
                    'file_path', p_vault || '/' || v_item.relative_path,
                    'content_hash', v_item.new_hash, 'mtime_ns', 1, 'size_bytes', 2,
                    'frontmatter', '{}'::jsonb, 'warnings',
                    case when v_item.relative_path like '%odd%' then array['odd'] else '{}' end
                ),
                coalesce((select jsonb_agg(jsonb_build_object(
                    'chunk_index', n, 'content', 'text', 'heading_path', '{}'::text[],
                    'tags', '{}'::text[], 'wikilinks', '{}'::text[], 'metadata', '{}'::jsonb,
                    -- the first chunk keeps its text when the file changes
                    'content_hash', 'h' || n || case when n > 0 then v_item.new_hash else '' end,
                    'token_count', 3, 'input_hash',
                    concat_ws(' ', p_provider, p_model, v_item.relative_path, v_item.new_hash, n),
                    'embedding', n + 1
                )) from generate_series(0, p_chunks - 1) as g (n)), '[]'),
                array(select pg_temp.vec() from generate_series(1, p_chunks))
            );
        end if;
    end loop;
    if p_finish then
        perform rag.delete_documents(v_run);
        perform rag.finish_run(v_run);
    end if;
    return v_run;
end $$;

create function pg_temp.problems() returns text language sql as $$
    select coalesce(string_agg(f.problem || ' @ ' || f.place, '; ' order by f.problem, f.place), '')
    from rag.find_inconsistencies() as f
$$;

-- numbers of documents, chunks, embeddings, runs and items of a vault
create function pg_temp.stored(p_vault text) returns text language sql as $$
    select concat_ws(' ',
        (select count(*) from rag.documents as d where d.vault_path = p_vault),
        (select count(*) from rag.chunks as c join rag.documents as d on d.id = c.document_id
        where d.vault_path = p_vault),
        (select count(*) from rag.embeddings as e join rag.chunks as c on c.id = e.chunk_id
        join rag.documents as d on d.id = c.document_id where d.vault_path = p_vault),
        (select count(*) from rag.ingest_runs as r where r.vault_path = p_vault),
        (select count(*) from rag.ingest_run_items as i join rag.ingest_runs as r on r.id = i.run_id
        where r.vault_path = p_vault)
    )
$$;
create function pg_temp.counts(p_vault text, p_path text, p_confirmed boolean default false)
    returns text language sql as $$
    select concat_ws(' ', f.documents, f.chunks, f.embeddings, f.runs, f.run_items)
    from rag.forget(p_vault, p_path, p_confirmed) as f
$$;

-- list_runs ---------------------------------------------------------------------------------------

select is_empty('select * from rag.list_runs()', 'no run is listed where there is none');
select is_empty(
    $$ select * from rag.list_vaults('fake', 'm', 1024) $$, 'no vault is listed where there is none'
);
select is_empty('select * from rag.list_coverage()', 'no coverage is listed where nothing is stored');
select is(pg_temp.problems(), '', 'an empty database is consistent');

create temporary table known (name text primary key, id bigint);
insert into known values ('first', pg_temp.ingest('/v', '{a.md=1,b.md=2,odd.md=3}'));
insert into known values ('failed', pg_temp.ingest(
    '/v', '{a.md=1,b.md=22,odd.md=3,x.md=4}', p_failed => '{b.md}'
));
insert into known values ('other', pg_temp.ingest('/w', '{a.md=1}'));
insert into known values ('withheld', pg_temp.ingest('/w', '{}'));

select results_eq(
    $$ select k.name, l.vault_path, l.status, l.error_summary, l.deletions_withheld
    from rag.list_runs() with ordinality as l
    join known as k on k.id = l.id order by l.ordinality $$,
    $$ values
        ('withheld', '/w', 'failed', '1 deletions withheld', 1::bigint),
        ('other', '/w', 'success', null, 0),
        ('failed', '/v', 'failed', '1 failed: b.md', 0),
        ('first', '/v', 'success', null, 0)
    $$,
    'runs are listed newest first, with how they ended and what they withheld'
);
select results_eq(
    $$ select l.embedding_provider, l.embedding_model, l.documents_added, l.documents_updated,
        l.documents_moved, l.documents_embedded, l.documents_deleted, l.documents_skipped,
        l.documents_failed, l.chunks_written, l.embeddings_written, l.embeddings_reused,
        l.metadata ->> 'pid', l.finished_at >= l.started_at
    from rag.list_runs(p_run_id => (select k.id from known as k where k.name = 'failed')) as l $$,
    $$ values ('fake', 'm', 1, 0, 0, 0, 0, 2, 1, 2, 2, 0, '12', true) $$,
    'one run can be asked for, with its counters and who ran it'
);
select results_eq(
    $$ select k.name from rag.list_runs(1) as l join known as k on k.id = l.id $$,
    $$ values ('withheld') $$, 'the limit keeps the newest'
);
select results_eq(
    $$ select k.name from rag.list_runs(p_vault_path => '/v') as l join known as k on k.id = l.id
    order by l.id desc $$,
    $$ values ('failed'), ('first') $$, 'the runs of one vault can be asked for'
);
select is_empty(
    'select * from rag.list_runs(p_run_id => 0)', 'a run that does not exist is not listed'
);
select is(
    (select count(*) from rag.list_runs(null)), 4::bigint, 'without a limit all runs are listed'
);

do $$ begin
    perform rag.begin_run('/alive', 'fake', 'm', 1024);
    perform pg_temp.dead('/dead');
end $$;
select results_eq(
    'select l.vault_path, l.status, l.finished_at from rag.list_runs(2) as l',
    $$ values ('/dead', 'dead', null::timestamptz), ('/alive', 'running', null) $$,
    'a run whose process is gone is dead, one at work is running'
);
select is(
    (select count(*) from rag.ingest_runs as r where r.status = 'running'), 2::bigint,
    'listing closes nothing'
);
select results_eq(
    $$ select l.vault_path, l.last_run_status, l.last_run_at is not null, l.indexed_at
    from rag.list_vaults('fake', 'm', 1024) as l where l.vault_path in ('/alive', '/dead') $$,
    $$ values ('/alive', 'running', true, null::timestamptz), ('/dead', 'dead', true, null) $$,
    'a vault says whether its last run is at work or dead'
);

-- list_run_items ----------------------------------------------------------------------------------

select results_eq(
    $$ select l.relative_path, l.action, l.status, l.reason, l.old_hash, l.new_hash,
        l.chunks_written, l.embeddings_written, l.embeddings_reused, l.error
    from known as k cross join rag.list_run_items(k.id) as l where k.name = 'failed' $$,
    $$ values
        ('b.md', 'change', 'failed', 'content changed', '2', '22', 0, 0, 0, 'bad byte in b.md'),
        ('x.md', 'add', 'done', 'new file', null, '4', 2, 2, 0, null)
    $$,
    'the items of a run say what was done, why, and what went wrong; unchanged files are left out'
);
select results_eq(
    $$ select l.relative_path, l.action, l.status
    from known as k cross join rag.list_run_items(k.id, true) as l where k.name = 'failed' $$,
    $$ values ('a.md', 'skip', 'done'), ('b.md', 'change', 'failed'), ('odd.md', 'skip', 'done'),
        ('x.md', 'add', 'done') $$,
    'unchanged files can be asked for, in the order of the plan'
);
select results_eq(
    $$ select l.relative_path
    from known as k cross join rag.list_run_items(k.id, true, 2) as l where k.name = 'failed' $$,
    $$ values ('a.md'), ('b.md') $$, 'the items can be limited'
);
select results_eq(
    $$ select l.relative_path, l.status, l.reason
    from known as k cross join rag.list_run_items(k.id) as l where k.name = 'withheld' $$,
    $$ values ('a.md', 'pending', 'withheld: no file was found at all') $$,
    'a withheld deletion is listed with the reason'
);
select is_empty(
    $$ select * from rag.list_run_items(pg_temp.run()) $$, 'a run without a plan has no items'
);
select throws_ok(
    format('select * from rag.list_run_items(%s)', id), 'RG005', 'there is no run ' || id,
    format('run %s has no items to list', id)
)
from unnest(array['0', 'null']) as u (id);

-- list_vaults, list_coverage ----------------------------------------------------------------------

do $$ begin
    -- of another provider only a part
    perform pg_temp.ingest('/v', '{a.md=1,b.md=2,odd.md=3,x.md=4}', 'other', 'o',
        p_failed => '{b.md,x.md}');
    -- uploads, seen by their session alone
    insert into rag.documents (
        vault_path, file_path, relative_path, content_hash, owner, scope
    )
    select v.path, '/u/' || v.file, v.file, 'u', gen_random_uuid(), 'upload:1'
    from (values ('/v', 'upload.md'), ('upload:1', 'upload.md')) as v (path, file);
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, content_hash, owner, scope
    )
    select d.id, 0, 'text', d.file_path, d.relative_path, 'h', d.owner, d.scope
    from rag.documents as d where d.owner is not null;
    insert into rag.embeddings (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, owner, scope
    )
    select c.id, 'fake', 'm', 1024, pg_temp.vec(), c.owner, c.scope
    from rag.chunks as c where c.owner is not null;
end $$;

select results_eq(
    $$ select l.vault_path, l.documents, l.chunks, l.embedded, l.with_warnings, l.last_run_status,
        l.last_error, l.failed, l.withheld
    from rag.list_vaults('fake', 'm', 1024) as l $$,
    $$ values
        ('/alive', 0::bigint, 0::bigint, 0::bigint, 0::bigint, 'running', null, 0::bigint,
            0::bigint),
        ('/dead', 0, 0, 0, 0, 'failed', 'interrupted', 0, 0),
        ('/v', 4, 8, 8, 1, 'failed', '2 failed: b.md, x.md', 2, 0),
        ('/w', 1, 2, 2, 0, 'failed', '1 deletions withheld', 0, 1)
    $$,
    'each vault says what is stored and what its last run left; uploads do not count'
);
select results_eq(
    $$ select l.vault_path, l.last_run_id = (
        select max(r.id) from rag.ingest_runs as r where r.vault_path = l.vault_path
    ), l.indexed_at = (
        select max(r.finished_at) from rag.ingest_runs as r join known as k on k.id = r.id
        where k.name in ('first', 'other') and r.vault_path = l.vault_path
    )
    from rag.list_vaults('fake', 'm', 1024) as l where l.vault_path in ('/v', '/w') $$,
    $$ values ('/v', true, true), ('/w', true, true) $$,
    'each vault says when a run last succeeded, however the last one ended'
);
select results_eq(
    $$ select l.vault_path, l.chunks, l.embedded
    from (values (1, 'other', 'o', 1024), (2, 'other', 'm', 1024), (3, 'other', 'o', 768))
        as p (nth, name, model, dim)
    cross join rag.list_vaults(p.name, p.model, p.dim) as l
    where l.vault_path = '/v' order by p.nth $$,
    $$ values ('/v', 8::bigint, 4::bigint), ('/v', 8, 0), ('/v', 8, 0) $$,
    'what is embedded is told for one configuration: provider, model and dimension'
);
select results_eq(
    'select * from rag.list_coverage()',
    $$ values
        ('/v', 'fake', 'm', 8::bigint, 8::bigint), ('/v', 'other', 'o', 8, 4),
        ('/w', 'fake', 'm', 2, 2), ('/w', 'other', 'o', 2, 0)
    $$,
    'the coverage of each vault by each configuration is told; uploads do not count'
);
do $$ declare v_run bigint; begin
    v_run := rag.begin_run('/w', 'fake', 'm', 1024);
    perform rag.record_plan(v_run, '[{"path": "new.md", "hash": "5"}]');
    perform rag.fail_run(v_run, 'interrupted');
end $$;
select results_eq(
    $$ select l.last_error, l.withheld from rag.list_vaults('fake', 'm', 1024) as l
    where l.vault_path = '/w' $$,
    $$ values ('interrupted', 0::bigint) $$,
    'a deletion that an interrupted run did not come to is not withheld'
);

-- check_not_busy through forget and move_vault ------------------------------------------------------

select throws_like(
    call, 'run % of /alive is at work (process ?%, since 20%', call || ' waits for the run'
)
from unnest(array[
    'select * from rag.forget(''/alive'')', 'select * from rag.forget(''/alive'', ''a.md'', true)',
    'select rag.move_vault(''/alive'', ''/z'')', 'select rag.move_vault(''/v'', ''/alive'')',
    'select rag.move_vault(''/alive'', ''/0'')', 'select rag.move_vault(''/0'', ''/alive'')',
    'select rag.check_not_busy(''/alive'')'
]) as u (call);
select throws_ok(
    call, 'RG006', null, call || ' raises RG006'
)
from unnest(array[
    'select * from rag.forget(''/alive'')', 'select rag.move_vault(''/alive'', ''/z'')',
    'select rag.move_vault(''/v'', ''/alive'')'
]) as u (call);
do $$ begin perform pg_temp.dead('/dead'); end $$;
select lives_ok(
    $$ select rag.check_not_busy('/dead') $$, 'a run whose process is gone keeps nobody out'
);
select ok(
    exists (
        select 1 from pg_locks as l
        where l.locktype = 'advisory' and l.pid = pg_backend_pid()
            and (l.classid::bigint << 32) | l.objid::bigint
            = hashtextextended('rag.vault:/dead', 0) and l.mode = 'ExclusiveLock'
    ),
    'a vault that is not busy is locked until the end of the transaction'
);
do $$ begin
    perform rag.finish_run(r.id) from rag.ingest_runs as r where r.vault_path = '/alive';
    perform rag.close_dead_runs();
end $$;

-- forget ------------------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.ingest('/f', array[
        'hr/a.md=1', 'hr/sub/b.md=2', 'hr=3', 'hrx/c.md=4', 'xhr/d.md=5', 'h_/e.md=6', 'h%/f.md=7',
        'n_te.md=8', 'note.md=9', 'old/g.md=10', 'HR/h.md=11', '100%.md=12'
    ], p_chunks => 1);
    perform pg_temp.ingest('/f', array[
        'hr/a.md=1', 'hr/sub/b.md=22', 'hr=3', 'hrx/c.md=4', 'xhr/d.md=5', 'h_/e.md=6',
        'h%/f.md=7', 'n_te.md=8', 'note.md=99', 'new/g.md=10', 'HR/h.md=11', '100%.md=12'
    ], p_chunks => 1, p_failed => '{hr/sub/b.md}');
    perform pg_temp.ingest('/g', '{hr/a.md=1,note.md=9}', p_chunks => 1);
    insert into rag.documents (vault_path, file_path, relative_path, content_hash, owner)
    values ('/f', '/f/hr/own.md', 'hr/own.md', 'o', gen_random_uuid());
end $$;
create temporary table before_forget as
select r.id, to_jsonb(r) as run from rag.ingest_runs as r where r.vault_path = '/f';

select is(pg_temp.counts(vault, path), expected, name)
from (values
    ('/f', 'hr', '3 3 3 0 6', 'a folder is all below it, and a note of that name'),
    ('/f', 'hr/', '3 3 3 0 6', 'a slash at the end of a folder does not matter'),
    ('/f', 'hr/sub', '1 1 1 0 2', 'a folder in a folder can be named'),
    ('/f', 'h_', '1 1 1 0 2', 'an underscore is no wildcard'),
    ('/f', 'h%', '1 1 1 0 2', 'a percent sign is no wildcard'),
    ('/f', 'n_te.md', '1 1 1 0 2', 'a note is one note'),
    ('/f', 'note', '0 0 0 0 0', 'the start of a name is not the name'),
    ('/f', 'HR', '1 1 1 0 2', 'another case is another folder'),
    ('/f', 'old', '0 0 0 0 2', 'a path that has gone is still in the ledger'),
    ('/f', 'nowhere', '0 0 0 0 0', 'of a path that never was there is nothing'),
    ('/f', '', '0 0 0 0 0', 'an empty path is nothing, not all'),
    ('/f', '/', '0 0 0 0 0', 'a slash is nothing, not all'),
    ('/f', null, '12 12 12 2 24', 'without a path it is the whole vault'),
    ('/nowhere', null, '0 0 0 0 0', 'of a vault that never was there is nothing')
) as u (vault, path, expected, name);
select is(
    pg_temp.stored('/f'), '13 12 12 2 24', 'without confirmation nothing is removed'
);
select results_eq(
    $$ select to_jsonb(r) from rag.ingest_runs as r where r.vault_path = '/f' order by r.id $$,
    'select b.run from before_forget as b order by b.id',
    'without confirmation the ledger stays as it is'
);

select is(
    pg_temp.counts('/f', path, true), '0 0 0 0 0', format('nothing is removed for path %L', path)
)
from unnest(array['', '/', 'nowhere']) as u (path);
select results_eq(
    $$ select r.error_summary from rag.ingest_runs as r where r.vault_path = '/f' order by r.id $$,
    $$ values (null), ('1 failed: hr/sub/b.md') $$,
    'a path of which there is nothing takes no error summary away'
);

select is(
    pg_temp.counts('/f', 'hr', true), '3 3 3 0 6', 'forgetting a folder says what was there'
);
select is(pg_temp.counts('/f', 'hr'), '0 0 0 0 0', 'afterwards nothing of the folder is left');
select results_eq(
    $$ select d.relative_path from rag.documents as d where d.vault_path = '/f'
    order by d.relative_path collate "C" $$,
    $$ values ('100%.md'), ('HR/h.md'), ('h%/f.md'), ('h_/e.md'), ('hr/own.md'), ('hrx/c.md'),
        ('n_te.md'), ('new/g.md'), ('note.md'), ('xhr/d.md') $$,
    'folders whose names begin alike, and what a session owns, stay'
);
select is_empty(
    $$ select i.* from rag.ingest_run_items as i join rag.ingest_runs as r on r.id = i.run_id
    where r.vault_path = '/f' and to_jsonb(i)::text ~ '"hr[/"]' $$,
    'the items of a forgotten folder do not name it any more'
);
select results_eq(
    $$ select i.relative_path = format('(forgotten %s)', i.id), i.action, i.status, i.old_hash,
        i.new_hash, i.document_id, i.error
    from rag.ingest_run_items as i join rag.ingest_runs as r on r.id = i.run_id
    where r.vault_path = '/f' and i.relative_path like '(forgotten%' order by i.id $$,
    $$ values (true, 'add', 'done', null, null, null::bigint, null),
        (true, 'add', 'done', null, null, null, null), (true, 'add', 'done', null, null, null, null),
        (true, 'skip', 'done', null, null, null, null),
        (true, 'skip', 'done', null, null, null, null),
        (true, 'change', 'failed', null, null, null, '(forgotten)') $$,
    'forgotten items keep only what the sums of their run need'
);
select results_eq(
    $$ select r.status, r.error_summary from rag.ingest_runs as r
    where r.vault_path = '/f' order by r.id $$,
    $$ values ('success', null), ('failed', '(forgotten)') $$,
    'an error summary that names a forgotten note goes, the status stays'
);
select is(pg_temp.problems(), '', 'after forgetting a folder all fits together');
select is(pg_temp.stored('/g'), '2 2 2 1 2', 'the same path in another vault stays');

select is(pg_temp.counts('/f', 'old/g.md', true), '0 0 0 0 2', 'the former path of a note can go');
select is_empty(
    $$ select i.* from rag.ingest_run_items as i join rag.ingest_runs as r on r.id = i.run_id
    where r.vault_path = '/f' and to_jsonb(i)::text like '%old/g.md%' $$,
    'no reason of a move names a forgotten path'
);
select is(
    (select count(*) from rag.documents as d where d.relative_path = 'new/g.md'), 1::bigint,
    'the note under its new path stays'
);
select is(pg_temp.counts('/f', 'n_te.md', true), '1 1 1 0 2', 'one note can be forgotten');
select is(
    (select string_agg(d.relative_path, ' ') from rag.documents as d
    where d.vault_path = '/f' and d.relative_path like 'n_te.md'), 'note.md',
    'a note whose name fits as a pattern stays'
);
select is(pg_temp.problems(), '', 'after forgetting notes all fits together');

select is(pg_temp.counts('/f', null, true), '8 8 8 2 24', 'a whole vault can be forgotten');
select is(pg_temp.counts('/f', null, true), '0 0 0 0 0', 'afterwards nothing of the vault is left');
select results_eq(
    $$ select d.relative_path from rag.documents as d where d.vault_path = '/f' $$,
    $$ values ('hr/own.md') $$, 'what a session owns outlives the vault'
);
select is(pg_temp.stored('/g'), '2 2 2 1 2', 'other vaults stay when one is forgotten');
select is(pg_temp.problems(), '', 'after forgetting a vault all fits together');

-- move_vault --------------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.ingest('/m', '{a.md=1,sub/b.md=2}');
    perform pg_temp.dead('/m');
    -- a row with the seed's columns only
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values ('/m', '/m/seed.md', 'seed.md', '3');
end $$;
create temporary table before_move as
select e.id, e.chunk_id, e.embedding, e.input_hash, e.created_at, e.updated_at
from rag.embeddings as e where e.scope = '/m';

select throws_ok(
    format('select rag.move_vault(%L, %L)', old, new), code, message, name
)
from (values
    ('/m', '/m', 'RG001', 'old and new path are the same: /m', 'a vault does not move to itself'),
    ('/m', '/g', 'RG001', 'there are documents of /g already', 'a vault does not move onto another'),
    ('/no', '/new', 'RG005', 'nothing is stored of /no', 'a vault that never was does not move'),
    ('/m/', '/new', 'RG005', 'nothing is stored of /m/', 'vaults are compared as they are written')
) as u (old, new, code, message, name);

select is(rag.move_vault('/m', '/srv/n'), 3::bigint, 'moving a vault tells how many documents moved');
select results_eq(
    $$ select d.vault_path, d.file_path, d.relative_path, d.scope from rag.documents as d
    where d.vault_path in ('/m', '/srv/n') order by d.relative_path $$,
    $$ values
        ('/srv/n', '/srv/n/a.md', 'a.md', '/srv/n'),
        ('/srv/n', '/srv/n/seed.md', 'seed.md', null),
        ('/srv/n', '/srv/n/sub/b.md', 'sub/b.md', '/srv/n')
    $$,
    'documents get the new path in every column; a missing scope stays missing'
);
select results_eq(
    $$ select distinct c.file_path, c.scope, e.scope
    from rag.documents as d join rag.chunks as c on c.document_id = d.id
    join rag.embeddings as e on e.chunk_id = c.id
    where d.vault_path = '/srv/n' order by c.file_path $$,
    $$ values ('/srv/n/a.md', '/srv/n', '/srv/n'), ('/srv/n/sub/b.md', '/srv/n', '/srv/n') $$,
    'chunks and embeddings get the new path in every column'
);
select is_empty(
    $$ (select e.id, e.chunk_id, e.embedding, e.input_hash, e.created_at, e.updated_at
        from rag.embeddings as e where e.scope = '/srv/n'
        except select * from before_move)
    union all
    (select * from before_move
        except select e.id, e.chunk_id, e.embedding, e.input_hash, e.created_at, e.updated_at
        from rag.embeddings as e where e.scope = '/srv/n') $$,
    'the embeddings themselves are kept'
);
select results_eq(
    $$ select r.status from rag.ingest_runs as r where r.vault_path = '/srv/n' order by r.id $$,
    $$ values ('success'), ('running') $$, 'the runs move along, dead ones too'
);
do $$ begin perform rag.close_dead_runs(); end $$;
select is(pg_temp.problems(), '', 'after a move all fits together');
select results_eq(
    $$ select p.action from rag.plan_ingest('/srv/n', '[{"path": "a.md", "hash": "1"},
        {"path": "sub/b.md", "hash": "2"}]', 'fake', 'm', 1024) as p
    where p.relative_path <> 'seed.md' $$,
    $$ values ('skip'), ('skip') $$, 'a moved vault has nothing to do'
);
do $$ begin perform pg_temp.ingest('/runs only', '{}'); end $$;
select is(
    rag.move_vault('/runs only', '/g2'), 0::bigint, 'a vault of which only runs are left can move'
);

-- find_inconsistencies ----------------------------------------------------------------------------

do $$ begin
    delete from rag.documents;
    delete from rag.ingest_runs;
    perform pg_temp.ingest('/c', '{a.md=1,b.md=2,c.md=3,none.md=4}', p_failed => '{none.md}');
    perform pg_temp.ingest('/c', '{a.md=1,b.md=2,c.md=3,none.md=4}', p_chunks => 0);
    perform pg_temp.ingest('/c', '{a.md=1,b.md=2,c.md=3,none.md=4}', 'other', 'o');
end $$;
select is(pg_temp.problems(), '', 'several runs of two providers leave all fitting together');

-- what p_statement breaks, undone afterwards
create function pg_temp.broken(p_statement text) returns text language plpgsql as $$
declare
    v_found text;
begin
    begin
        execute p_statement;
        v_found := pg_temp.problems();
        raise exception using errcode = 'PT001', message = v_found;
    exception when sqlstate 'PT001' then
        return sqlerrm;
    end;
end $$;

select is(pg_temp.broken(statement), problem, name)
from (values
    (
        'update rag.chunks as c set chunk_index = 5 where c.chunk_index = 1
        and c.relative_path = ''a.md''',
        'chunks are not numbered from 0 without gaps @ a.md', 'a gap in the numbers is found'
    ),
    (
        'update rag.chunks as c set chunk_index = -1 - c.chunk_index where c.relative_path = ''a.md''',
        'chunks are not numbered from 0 without gaps @ a.md', 'chunks left by an edit are found'
    ),
    (
        'update rag.chunks as c set relative_path = ''z.md'' where c.relative_path = ''a.md''
        and c.chunk_index = 1',
        'chunk and document differ in path, scope or owner @ a.md 1', 'another path is found'
    ),
    (
        'update rag.chunks as c set file_path = ''/z'' where c.relative_path = ''a.md''
        and c.chunk_index = 0',
        'chunk and document differ in path, scope or owner @ a.md 0', 'another file is found'
    ),
    (
        'update rag.chunks as c set scope = null where c.relative_path = ''a.md''
        and c.chunk_index = 0',
        'chunk and document differ in path, scope or owner @ a.md 0', 'a missing scope is found'
    ),
    (
        'update rag.chunks as c set owner = gen_random_uuid() where c.relative_path = ''a.md''
        and c.chunk_index = 0',
        'chunk and document differ in path, scope or owner @ a.md 0', 'another owner is found'
    ),
    (
        'delete from rag.embeddings as e using rag.chunks as c where c.id = e.chunk_id
        and c.relative_path = ''b.md'' and c.chunk_index = 0 and e.embedding_provider = ''other''',
        'a document lacks vectors of the run that embedded it last @ b.md',
        'one missing vector is found'
    ),
    (
        'delete from rag.embeddings as e using rag.chunks as c where c.id = e.chunk_id
        and c.relative_path = ''b.md'' and e.embedding_provider = ''other''',
        'a document lacks vectors of the run that embedded it last @ b.md',
        'a document without any of its vectors is found'
    ),
    (
        'delete from rag.embeddings as e using rag.chunks as c where c.id = e.chunk_id
        and c.relative_path = ''b.md'' and c.chunk_index = 0 and e.embedding_provider = ''fake''',
        '', 'vectors of an earlier configuration may be missing: its next run adds them'
    ),
    (
        'delete from rag.chunks as c where c.relative_path = ''c.md'' and c.chunk_index = 1',
        'the last run that stored a document wrote another number of chunks @ c.md',
        'a missing last chunk is found'
    ),
    (
        'delete from rag.chunks as c where c.relative_path = ''c.md''',
        'the last run that stored a document wrote another number of chunks @ c.md',
        'a document that has lost all its chunks is found'
    ),
    (
        'delete from rag.documents as d where d.relative_path = ''a.md''', '',
        'a document that somebody deleted leaves nothing behind'
    ),
    (
        'delete from rag.chunk_terms as t using rag.chunks as c where c.id = t.chunk_id
        and c.relative_path = ''a.md'' and c.chunk_index = 1',
        'a chunk counts as having terms, but has none @ a.md 1; '
        'rag.term_counts does not have as many chunks as there are @ /c', 'missing terms are found'
    ),
    (
        'update rag.term_counts as k set chunks = k.chunks + 1 where k.dim = 0',
        'rag.term_counts does not have as many chunks as there are @ /c', 'a wrong count is found'
    ),
    (
        'delete from rag.term_counts as k',
        'rag.term_counts does not have as many chunks as there are @ /c', 'a missing count is found'
    ),
    (
        'insert into rag.term_counts (dim, scope, chunks) values (0, ''/gone'', 1)',
        'rag.term_counts does not have as many chunks as there are @ /gone',
        'a count of no vault is found'
    ),
    (
        'update rag.chunks set has_terms = false where relative_path = ''a.md'';
        delete from rag.chunk_terms as t where not exists (
            select 1 from rag.chunks as c where c.id = t.chunk_id and c.has_terms
        ); select rag.fill_terms()',
        'rag.term_counts does not have as many chunks as there are @ /c',
        'terms taken away by hand are counted still, which is found'
    ),
    (
        'delete from rag.documents as d where d.relative_path = ''a.md'';
        insert into rag.documents (vault_path, file_path, relative_path, content_hash)
        values (''/hand'', ''/hand/h.md'', ''h.md'', ''d'');
        insert into rag.chunks (
            document_id, chunk_index, content, file_path, relative_path, content_hash
        ) select d.id, 0, ''x'', d.file_path, d.relative_path, ''h''
        from rag.documents as d where d.relative_path = ''h.md''', '',
        'chunks without terms are no problem, and deleted ones that are counted still neither'
    )
) as u (statement, problem, name);
select is(
    pg_temp.broken(format(
        'update rag.ingest_runs as r set %1$s = r.%1$s + 1 where r.id = %2$s', u.name, pg_temp.run()
    )),
    'the counters of a run are not the sum of its items @ run ' || pg_temp.run(),
    u.name || ' is compared with the items'
)
from unnest(array[
    'documents_added', 'documents_updated', 'documents_moved', 'documents_embedded',
    'documents_deleted', 'documents_skipped', 'documents_failed', 'chunks_written',
    'embeddings_written', 'embeddings_reused'
]) as u (name);
select alike(
    pg_temp.broken('select pg_temp.dead(''/x'')'),
    'a run counts as running, but its process is gone @ run %', 'a dead run is found'
);
select is(
    pg_temp.broken('select rag.begin_run(''/x'', ''fake'', ''m'', 1024)'), '',
    'a run at work is no problem'
);
select is(
    pg_temp.broken('select pg_temp.dead(''/x''), rag.close_dead_runs()'), '',
    'a run that was closed as interrupted is no problem'
);

do $$ begin
    perform pg_temp.ingest('/c', '{a.md=1,b.md=22,c.md=3,none.md=4}', 'other', 'o');
end $$;
select is(
    pg_temp.problems(), '', 'after an edit the vectors of another provider are partial, no problem'
);
select results_eq(
    $$ select e.embedding_provider, count(*)
    from rag.embeddings as e join rag.chunks as c on c.id = e.chunk_id
    where c.relative_path = 'b.md' group by e.embedding_provider order by 1 $$,
    $$ values ('fake', 1::bigint), ('other', 2) $$, 'that edit did leave partial vectors'
);
select is(
    pg_temp.broken('select rag.begin_run(''/c'', ''fake'', ''m'', 1024)'), '',
    'nor are they while a run of that provider has not come to the document'
);
do $$ begin perform pg_temp.ingest('/c', '{a.md=11,b.md=22,c.md=3,none.md=4}', 'other', 'p'); end $$;
select is(
    pg_temp.problems(), '', 'another model of the same provider is another configuration'
);
select is(
    pg_temp.broken('delete from rag.embeddings as e using rag.chunks as c where c.id = e.chunk_id
        and c.relative_path = ''a.md'' and c.chunk_index = 0 and e.embedding_model = ''p'''),
    'a document lacks vectors of the run that embedded it last @ a.md',
    'the vector of an earlier model does not stand in for a missing one'
);
do $$ declare v_run bigint; begin
    v_run := rag.begin_run('/c', 'fake', 'm', 1024);
    perform rag.record_plan(v_run, '[{"path": "a.md", "hash": "9"}, {"path": "b.md", "hash": "22"},
        {"path": "c.md", "hash": "3"}, {"path": "d.md", "hash": "1"}]');
    perform rag.retract_item(v_run, 'a.md');
    perform rag.retract_item(v_run, 'd.md');
    perform rag.fail_item(v_run, 'b.md', 'bad byte');
    perform rag.delete_documents(v_run);
    perform rag.finish_run(v_run);
end $$;
select is(pg_temp.problems(), '', 'vanished, failed and deleted files leave all fitting together');

select * from finish();
rollback;
