-- Tests of db/functions/ingest_plan.sql: what a run has to do, and the guard against mass deletion.

begin;
select plan(60);

create function pg_temp.vec() returns public.vector language sql immutable
as 'select array_fill(0.03125::real, array[1024])::public.vector';

-- stores a document of one chunk, embedded by the given providers; only columns of the contract
create function pg_temp.store(
    p_path text, p_hash text, p_providers text[] default '{fake}', p_vault text default '/v'
) returns void language sql as $$
    with d as (
        insert into rag.documents (vault_path, file_path, relative_path, content_hash)
        values (p_vault, p_vault || '/' || p_path, p_path, p_hash)
        returning id, file_path, relative_path
    ), c as (
        insert into rag.chunks (
            document_id, chunk_index, content, file_path, relative_path, content_hash
        )
        select d.id, 0, 'text', d.file_path, d.relative_path, 'h' from d
        returning id
    )
    insert into rag.embeddings (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
    )
    select c.id, p.name, 'm', 1024, pg_temp.vec() from c, unnest(p_providers) as p (name)
$$;

-- a manifest: 'path=hash', or 'path!error'
create function pg_temp.files(variadic p_files text[]) returns jsonb language sql as $$
    select coalesce(jsonb_agg(
        case when f.entry like '%!%'
            then jsonb_build_object(
                'path', split_part(f.entry, '!', 1), 'error', split_part(f.entry, '!', 2)
            )
            else jsonb_build_object(
                'path', split_part(f.entry, '=', 1), 'hash', split_part(f.entry, '=', 2),
                'size', 3, 'mtime', 4
            )
        end
    ), '[]') from unnest(p_files) as f (entry)
$$;

create function pg_temp.planned(variadic p_files text[]) returns text language sql as $$
    select coalesce(string_agg(
        p.action || ' ' || coalesce(p.moved_from || ' > ', '') || p.relative_path, ', '
    ), '') from rag.plan_ingest('/v', pg_temp.files(variadic p_files), 'fake', 'm', 1024) as p
$$;

-- plan_ingest -------------------------------------------------------------------------------------

select is(pg_temp.planned(variadic '{}'), '', 'nothing is planned for nothing');
select is(pg_temp.planned('b.md=2', 'a.md=1'), 'add a.md, add b.md', 'new files are added by path');

do $$ begin
    perform pg_temp.store('a.md', '1');
    perform pg_temp.store('b.md', '2');
    perform pg_temp.store('sub/c.md', '3');
    perform pg_temp.store('elsewhere.md', '9', '{fake}', '/w');
end $$;

select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/c.md=3'), 'skip a.md, skip b.md, skip sub/c.md',
    'unchanged files are skipped; another vault does not matter'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=22', 'sub/c.md=3', 'd.md=4'),
    'skip a.md, change b.md, add d.md, skip sub/c.md', 'changed and new files are found'
);
select is(
    pg_temp.planned('zz.md=8', 'b.md=2'), 'skip b.md, add zz.md, delete a.md, delete sub/c.md',
    'vanished files are deleted, last'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'new/c.md=3'),
    'skip a.md, skip b.md, move sub/c.md > new/c.md',
    'a file with the content of a vanished one has moved'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/c.md=3', 'copy.md=3'),
    'skip a.md, skip b.md, add copy.md, skip sub/c.md', 'a copy beside its original is added'
);
select is(
    pg_temp.planned('a.md=2', 'b.md=1', 'sub/c.md=3'),
    'change a.md, change b.md, skip sub/c.md', 'files that changed places are changed'
);
select is(
    pg_temp.planned('A.md=1', 'b.md=2', 'sub/c.md=3'),
    'move a.md > A.md, skip b.md, skip sub/c.md', 'another case is another path'
);
select is(
    pg_temp.planned('b.md=1', 'c.md=2', 'sub/c.md=3'),
    'change b.md, add c.md, skip sub/c.md, delete a.md',
    'a path that has got the content of another one is changed'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'c1.md=3', 'c2.md=3'),
    'skip a.md, skip b.md, move sub/c.md > c1.md, add c2.md',
    'of two new files with the same content one has moved'
);

do $$ begin
    perform pg_temp.store('twin1.md', '7');
    perform pg_temp.store('twin2.md', '7');
end $$;
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/c.md=3', 'y2.md=7', 'y1.md=7'),
    'skip a.md, skip b.md, skip sub/c.md, move twin1.md > y1.md, move twin2.md > y2.md',
    'two files with the same content move each from a path of its own'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/c.md=3', 'y.md=7'),
    'skip a.md, skip b.md, skip sub/c.md, move twin1.md > y.md, delete twin2.md',
    'of two vanished files with the same content one has moved'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/c.md=3', 'twin1.md=7', 'y.md=7'),
    'skip a.md, skip b.md, skip sub/c.md, skip twin1.md, move twin2.md > y.md',
    'a file that is still there has not moved'
);
delete from rag.documents as d where d.content_hash = '7';

-- unreadable files and folders
select is(
    pg_temp.planned('a.md!no permission', 'b.md=2', 'sub/c.md=3', 'new.md!broken'),
    'change a.md, skip b.md, add new.md, skip sub/c.md', 'a file that cannot be read is not gone'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/!no permission'),
    'skip a.md, skip b.md, skip sub/', 'nothing below a folder that cannot be read is gone'
);
select is(
    pg_temp.planned('a.md=1', 'su/!no permission'),
    'skip a.md, skip su/, delete b.md, delete sub/c.md',
    'a folder with a name that begins alike is another one'
);
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/!no permission', 'x/c.md=3'),
    'skip a.md, skip b.md, skip sub/, add x/c.md',
    'what may still be below a folder that cannot be read has not moved'
);
do $$ begin perform pg_temp.store('a_b/e.md', '5'); end $$;
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/c.md=3', 'axb/!x', 'a%/!x', '_/!x'),
    'skip _/, skip a%/, skip a.md, skip axb/, skip b.md, skip sub/c.md, delete a_b/e.md',
    'no character of a folder name is a wildcard'
);
delete from rag.documents as d where d.content_hash = '5';

select results_eq(
    $$ select * from rag.plan_ingest('/v', pg_temp.files(
        'a.md=1', 'b.md=22', 'n.md=8', 'x.md!no permission', 'moved.md=3'), 'fake', 'm', 1024) $$,
    $$ values
        ('a.md', 'skip', 'unchanged', null, '1', '1', null),
        ('b.md', 'change', 'content changed', null, '2', '22', null),
        ('moved.md', 'move', 'same content as the vanished sub/c.md', 'sub/c.md', '3', '3', null),
        ('n.md', 'add', 'new file', null, null, '8', null),
        ('x.md', 'add', 'it cannot be read', null, null, null, 'no permission')
    $$,
    'each item says why, with both hashes'
);

-- embeddings that are missing
do $$ begin
    perform pg_temp.store('other.md', '6', '{other}');
    perform pg_temp.store('none.md', '7', '{}');
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values ('/v', '/v/empty.md', 'empty.md', '8');
end $$;
select is(
    pg_temp.planned('a.md=1', 'other.md=6', 'none.md=7', 'empty.md=8', 'b.md=2', 'sub/c.md=3'),
    'skip a.md, skip b.md, skip empty.md, embed none.md, embed other.md, skip sub/c.md',
    'an unchanged file that this provider has not embedded is embedded; one without chunks is not'
);
select is(
    pg_temp.planned('a.md=1', 'other.md=66', 'none.md=7', 'empty.md=88', 'b.md=2', 'c.md=3'),
    'skip a.md, skip b.md, move sub/c.md > c.md, change empty.md, embed none.md, change other.md',
    'a changed file is not only embedded'
);
select results_eq(
    $$ select p.relative_path, p.action, p.reason
    from rag.plan_ingest('/v', pg_temp.files('a.md=1', 'other.md=6'), 'other', 'm2', 1024) as p
    where p.action <> 'delete' $$,
    $$ values ('a.md', 'embed', 'not embedded by other m2'),
        ('other.md', 'embed', 'not embedded by other m2') $$,
    'another model is another configuration'
);
insert into rag.chunks (document_id, chunk_index, content, file_path, relative_path, content_hash)
select d.id, 1, 'more', d.file_path, d.relative_path, 'h2'
from rag.documents as d where d.relative_path = 'a.md';
select is(
    pg_temp.planned('a.md=1', 'b.md=2', 'sub/c.md=3', 'other.md!x', 'none.md!x', 'empty.md=8'),
    'embed a.md, skip b.md, skip empty.md, change none.md, change other.md, skip sub/c.md',
    'one chunk without embedding is enough'
);
select is(
    (select count(*) from rag.ingest_run_items), 0::bigint, 'planning alone writes nothing'
);

-- record_plan -------------------------------------------------------------------------------------

-- a fresh vault of p_documents documents, a run of it, and the manifest of those from p_gone + 1 on
create function pg_temp.vault(p_documents integer) returns bigint language plpgsql as $$
begin
    delete from rag.documents;
    perform pg_temp.store(lpad(n::text, 3, '0') || '.md', 'hash ' || n)
    from generate_series(1, p_documents) as g (n);
    update rag.ingest_runs as r set status = 'failed' where r.status = 'running';
    return rag.begin_run('/v', 'fake', 'm', 1024);
end $$;
create function pg_temp.rest(p_documents integer, p_gone integer) returns jsonb language sql as $$
    select coalesce(jsonb_agg(jsonb_build_object('path', lpad(n::text, 3, '0') || '.md',
        'hash', 'hash ' || n)), '[]') from generate_series(p_gone + 1, p_documents) as g (n)
$$;
create function pg_temp.run() returns bigint language sql as
'select max(r.id) from rag.ingest_runs as r';
create function pg_temp.reasons() returns text language sql as $$
    select coalesce(string_agg(distinct i.reason, ', '), '') from rag.ingest_run_items as i
    where i.run_id = pg_temp.run() and i.action = 'delete'
$$;

do $$ begin perform pg_temp.vault(3); end $$;
select results_eq(
    $$ select r.relative_path, r.action, r.old_hash, r.new_hash, r.error
    from rag.record_plan(pg_temp.run(), pg_temp.files(
        '001.md=hash 1', '002.md=changed', 'n.md=8', 'x.md!no permission')) as r $$,
    $$ values
        ('002.md', 'change', 'hash 2', 'changed', null),
        ('n.md', 'add', null, '8', null),
        ('x.md', 'add', null, null, 'no permission'),
        ('003.md', 'delete', 'hash 3', null, null)
    $$,
    'a recorded plan gives all but the unchanged files, deletions last'
);
select results_eq(
    $$ select i.relative_path, i.action, i.status, i.error
    from rag.ingest_run_items as i where i.run_id = pg_temp.run() order by i.id $$,
    $$ values
        ('001.md', 'skip', 'done', null),
        ('002.md', 'change', 'pending', null),
        ('n.md', 'add', 'pending', null),
        ('x.md', 'add', 'failed', 'no permission'),
        ('003.md', 'delete', 'pending', null)
    $$,
    'one item a path is stored: unchanged files are done, unreadable ones failed'
);
select results_eq(
    $$ select r.documents_skipped, r.documents_failed, r.documents_added, r.status
    from rag.ingest_runs as r where r.id = pg_temp.run() $$,
    $$ values (1, 1, 0, 'running') $$, 'skipped and failed files are counted at once'
);
select throws_ok(
    format('select * from rag.record_plan(%s, ''[]'')', id), 'RG005',
    format('there is no running run %s', id), format('run %s cannot be planned', id)
)
from unnest(array['0', 'null']) as u (id);

create function pg_temp.withheld(p_documents integer, p_gone integer, p_allowed boolean)
    returns text language plpgsql as $$
begin
    perform pg_temp.vault(p_documents);
    perform rag.record_plan(pg_temp.run(), pg_temp.rest(p_documents, p_gone), p_allowed);
    return pg_temp.reasons();
end $$;
select is(pg_temp.withheld(documents, gone, allowed), reasons, name)
from (values
    (20, 6, false, 'file is gone', '6 of 20, exactly 30 %, are deleted'),
    (19, 6, false, 'withheld: 6 of 19 documents would vanish', '6 of 19 are withheld'),
    (6, 5, false, 'file is gone', '5 are deleted, however few remain'),
    (7, 6, false, 'withheld: 6 of 7 documents would vanish', '6 of 7 are withheld'),
    (1, 1, false, 'withheld: no file was found at all', 'no file at all withholds even one'),
    (0, 0, false, '', 'an empty vault that was empty has nothing to withhold'),
    (7, 6, null, 'withheld: 6 of 7 documents would vanish', 'no word is not a permission'),
    (7, 6, true, 'file is gone', 'mass deletion can be allowed'),
    (7, 7, true, 'file is gone', 'the deletion of all can be allowed')
) as u (documents, gone, allowed, reasons, name);

do $$ begin perform pg_temp.vault(8); end $$;
select is_empty(
    $$ select * from rag.record_plan(pg_temp.run(), (
        select jsonb_agg(f.entry || jsonb_build_object('path', 'new/' || (f.entry ->> 'path')))
        from jsonb_array_elements(pg_temp.rest(8, 0)) as f (entry)
    )) as r where r.action <> 'move' $$,
    'a folder that has got another name is moved, and nothing vanishes'
);
do $$ begin
    perform pg_temp.vault(2);
    perform rag.record_plan(pg_temp.run(), pg_temp.files('sub/!no permission'));
end $$;
select is(
    pg_temp.reasons(), 'withheld: no file was found at all',
    'a folder that cannot be read is no file'
);

-- why_withheld ------------------------------------------------------------------------------------

select is(rag.why_withheld(deletions, documents, files), why, name)
from (values
    (0, 10, 0, null, 'without a deletion nothing is withheld, though no file was found'),
    (1, 10, 0, 'no file was found at all', 'no file at all withholds one deletion'),
    (5, 5, 1, null, 'five deletions are done, however few documents remain'),
    (6, 20, 14, null, 'exactly 30 % are done'),
    (6, 19, 13, '6 of 19 documents would vanish', 'more than 5 and more than 30 % are withheld'),
    (30000, 100000, 70000, null, 'exactly 30 % of many are done'),
    (30001, 100000, 69999, '30001 of 100000 documents would vanish', 'one more is withheld')
) as u (deletions, documents, files, why, name);

-- preview_ingest ----------------------------------------------------------------------------------

-- the reasons of deletions that a preview of p_documents documents gives when p_gone files are gone
create function pg_temp.previewed(p_documents integer, p_gone integer, p_allowed boolean)
    returns text language plpgsql as $$
begin
    perform pg_temp.vault(p_documents);
    return (
        select coalesce(string_agg(distinct p.reason, ', '), '')
        from rag.preview_ingest(
            '/v', pg_temp.rest(p_documents, p_gone), 'fake', 'm', 1024, p_allowed
        ) as p where p.action = 'delete'
    );
end $$;
select is(
    pg_temp.previewed(documents, gone, allowed), pg_temp.withheld(documents, gone, allowed),
    format('%s of %s gone, allowed %s: the preview says what the run does', gone, documents, allowed)
)
from (values
    (20, 6, false), (19, 6, false), (6, 5, false), (1, 1, false), (0, 0, false), (7, 6, null),
    (7, 6, true), (7, 7, true)
) as u (documents, gone, allowed);

do $$ begin perform pg_temp.vault(9); end $$;
create temporary table rows_before as
select (select count(*) from rag.ingest_run_items) as items,
    (select jsonb_agg(to_jsonb(r) order by r.id) from rag.ingest_runs as r) as runs;
select results_eq(
    $$ select * from rag.preview_ingest('/v', pg_temp.files(
        '001.md=hash 1', '002.md=changed', 'moved.md=hash 3', 'n.md=8', 'x.md!no permission', 'sub/!x'
    ), 'fake', 'm', 1024) $$,
    $$ values
        ('001.md', 'skip', 'unchanged', null, 'hash 1', 'hash 1', null),
        ('002.md', 'change', 'content changed', null, 'hash 2', 'changed', null),
        ('moved.md', 'move', 'same content as the vanished 003.md', '003.md', 'hash 3', 'hash 3',
            null),
        ('n.md', 'add', 'new file', null, null, '8', null),
        ('sub/', 'skip', 'it cannot be read', null, null, null, 'x'),
        ('x.md', 'add', 'it cannot be read', null, null, null, 'no permission'),
        ('004.md', 'delete', 'withheld: 6 of 9 documents would vanish', null, 'hash 4', null, null),
        ('005.md', 'delete', 'withheld: 6 of 9 documents would vanish', null, 'hash 5', null, null),
        ('006.md', 'delete', 'withheld: 6 of 9 documents would vanish', null, 'hash 6', null, null),
        ('007.md', 'delete', 'withheld: 6 of 9 documents would vanish', null, 'hash 7', null, null),
        ('008.md', 'delete', 'withheld: 6 of 9 documents would vanish', null, 'hash 8', null, null),
        ('009.md', 'delete', 'withheld: 6 of 9 documents would vanish', null, 'hash 9', null, null)
    $$,
    'a preview gives every path with its reason, unchanged ones too, withheld deletions last'
);
select results_eq(
    $$ select count(*), (select jsonb_agg(to_jsonb(r) order by r.id) from rag.ingest_runs as r)
    from rag.ingest_run_items $$,
    'select b.items, b.runs from rows_before as b', 'a preview writes nothing'
);
select is(
    (select count(*) from rag.preview_ingest(
        '/v', pg_temp.files('sub/!no permission'), 'fake', 'm', 1024
    ) as p where p.reason = 'withheld: no file was found at all'), 9::bigint,
    'a folder that cannot be read is no file in a preview either'
);
select lives_ok(
    $$ select * from rag.preview_ingest('/v', '[]', 'fake', 'm', 1024) $$,
    'a preview is possible while a run of the vault is at work'
);

select * from finish();
rollback;
