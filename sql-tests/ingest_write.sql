-- Tests of db/functions/ingest_write.sql: storing, embedding, failing and deleting documents.
-- Each section works in vaults of its own, named after it.

begin;
select plan(102);

-- a vector whose first coordinates are given and whose others are 0
create function pg_temp.vec(variadic p_first real[]) returns public.vector language sql immutable
as 'select (p_first || array_fill(0::real, array[1024 - cardinality(p_first)]))::public.vector';

create function pg_temp.doc(p_hash text, p_path text default 'a.md', p_title text default 'T')
    returns jsonb language sql immutable as $$
    select jsonb_build_object(
        'file_path', '/x/' || p_path, 'content_hash', p_hash, 'mtime_ns', 1700000000000000001,
        'size_bytes', 42, 'frontmatter', jsonb_build_object('title', p_title),
        'warnings', array['odd date']
    )
$$;

-- a chunk whose hashes follow from its text; p_embedding is its place among the new vectors
create function pg_temp.chunk(
    p_index integer, p_text text, p_embedding integer default null, p_tag text default 't',
    p_heading text default 'H'
) returns jsonb language sql immutable as $$
    select jsonb_build_object(
        'chunk_index', p_index, 'content', p_text, 'heading_path', array['Top', p_heading],
        'tags', array[p_tag], 'wikilinks', array['Page'], 'metadata', '{"page": 7}'::jsonb,
        'content_hash', 'hash of ' || p_text, 'token_count', 9,
        'input_hash', 'input ' || p_text || p_tag, 'embedding', p_embedding
    )
$$;

create function pg_temp.run() returns bigint language sql as
'select max(r.id) from rag.ingest_runs as r';

-- begins a run of a vault and plans its files, each given as 'path=hash'
create function pg_temp.start(p_vault text, p_provider text, variadic p_files text[])
    returns void language plpgsql as $$
begin
    update rag.ingest_runs as r set status = 'failed' where r.status = 'running';
    perform rag.begin_run(p_vault, p_provider, p_provider || ' model', 1024);
    perform rag.record_plan(pg_temp.run(), (
        select coalesce(jsonb_agg(jsonb_build_object(
            'path', split_part(f.entry, '=', 1), 'hash', split_part(f.entry, '=', 2)
        )), '[]') from unnest(p_files) as f (entry)
    ));
end $$;

-- stores a.md of the current run
create function pg_temp.store(
    p_hash text, p_chunks jsonb[], p_vectors public.vector[] default '{}'
) returns bigint language sql as $$
    select rag.replace_document(pg_temp.run(), 'a.md', pg_temp.doc(p_hash), to_jsonb(p_chunks),
        p_vectors)
$$;

-- what a vault holds, as 'path index text: provider vector, …' lines
create function pg_temp.held(p_vault text) returns text language sql as $$
    select coalesce(string_agg(c.line, '; ' order by c.path, c.chunk_index), '') from (
        select c.relative_path as path, c.chunk_index,
            format('%s %s %s:', c.relative_path, c.chunk_index, c.content) || coalesce(' '
            || string_agg(
                e.embedding_provider || ' '
                || array_to_string((e.embedding::real[])[:2], '/'), ', '
                order by e.embedding_provider
            ), '') as line
        from rag.documents as d
        join rag.chunks as c on c.document_id = d.id
        left join rag.embeddings as e on e.chunk_id = c.id
        where d.vault_path = p_vault
        group by c.id
    ) as c
$$;

-- counters of the current run
create function pg_temp.counted() returns text language sql as $$
    select format(
        'added %s, updated %s, moved %s, embedded %s, deleted %s, skipped %s, failed %s, '
        || 'chunks %s, embeddings %s, reused %s',
        r.documents_added, r.documents_updated, r.documents_moved, r.documents_embedded,
        r.documents_deleted, r.documents_skipped, r.documents_failed, r.chunks_written,
        r.embeddings_written, r.embeddings_reused
    ) from rag.ingest_runs as r where r.id = pg_temp.run()
$$;

create function pg_temp.item(p_path text default 'a.md') returns text language sql as $$
    select concat_ws(' ', i.action, i.status, i.error) from rag.ingest_run_items as i
    where i.run_id = pg_temp.run() and i.relative_path = p_path
$$;

-- check_vectors -----------------------------------------------------------------------------------

select lives_ok(
    format('select rag.check_vectors(''a.md'', array[%s]::public.vector[])', v), name
)
from (values
    ('', 'no vectors are fine'),
    ('pg_temp.vec(1), pg_temp.vec(0.6, 0.8), null', 'unit vectors are fine, and null beside them'),
    ('pg_temp.vec(1.005)', 'rounding errors are fine')
) as u (v, name);
select lives_ok('select rag.check_vectors(''a.md'', null)', 'no array is fine');
select throws_ok(
    format('select rag.check_vectors(''a.md'', array[%s]::public.vector[])', v), code, message, name
)
from (values
    (
        'pg_temp.vec(2)', 'RG001', 'a vector for a.md has the length 2, expected 1',
        'a longer vector is refused'
    ),
    (
        'pg_temp.vec(1), pg_temp.vec(0.5)', 'RG001',
        'a vector for a.md has the length 0.5, expected 1', 'a shorter vector is refused'
    ),
    (
        'pg_temp.vec(0)', 'RG001', 'a vector for a.md has the length 0, expected 1',
        'a zero vector is refused'
    ),
    (
        'null, ''[1,0,0]''', 'RG004', 'embedding dimension must be 1024, got 3',
        'a vector of another dimension is refused'
    )
) as u (v, code, message, name);

-- pending_item ------------------------------------------------------------------------------------

do $$ begin perform pg_temp.start('/pending', 'fake', 'a.md=1'); end $$;
select is((rag.pending_item(pg_temp.run(), 'a.md')).action, 'add', 'a pending item is found');
select throws_ok(
    format('select rag.pending_item(%s, ''b.md'')', pg_temp.run()), 'RG005',
    format('run %s has nothing pending for b.md', pg_temp.run()), 'a path of no item is refused'
);
select throws_ok(
    'select rag.pending_item(0, ''a.md'')', 'RG005', 'run 0 has nothing pending for a.md',
    'an item of another run is refused'
);

-- replace_document: a new file --------------------------------------------------------------------

do $$ begin perform pg_temp.start('/add', 'fake', 'a.md=planned'); end $$;
create temp table stored as
select pg_temp.store(
    'h1', array[pg_temp.chunk(0, 'one', 2), pg_temp.chunk(1, 'two', 1)],
    array[pg_temp.vec(0, 1), pg_temp.vec(1)]
) as id;
select row_eq(
    $$ select d.id, d.vault_path, d.file_path, d.relative_path, d.content_hash, d.mtime_ns,
        d.size_bytes, d.frontmatter, d.owner, d.scope, d.warnings
    from rag.documents as d where d.vault_path = '/add' $$,
    row(
        (select s.id from stored as s), '/add'::text, '/x/a.md'::text, 'a.md'::text, 'h1'::text,
        1700000000000000001::bigint, 42::bigint, '{"title": "T"}'::jsonb, null::uuid, '/add'::text,
        '{odd date}'::text[]
    ), 'a new document is stored with all that is known of it, and its id comes back'
);
select results_eq(
    $$ select c.chunk_index, c.content, c.file_path, c.relative_path, c.heading_path,
        c.frontmatter, c.tags, c.wikilinks, c.metadata, c.content_hash, c.token_count, c.owner,
        c.scope
    from rag.chunks as c where c.document_id = (select s.id from stored as s)
    order by c.chunk_index $$,
    $$ select n, t, '/x/a.md', 'a.md', '{Top,H}'::text[], '{"title": "T"}'::jsonb, '{t}'::text[],
        '{Page}'::text[], '{"page": 7}'::jsonb, 'hash of ' || t, 9, null::uuid, '/add'
    from (values (0, 'one'), (1, 'two')) as u (n, t) $$,
    'its chunks carry copies of paths, frontmatter, owner and scope'
);
select results_eq(
    $$ select c.chunk_index, e.embedding_provider, e.embedding_model, e.embedding_dim,
        e.embedding, e.input_hash, e.owner, e.scope
    from rag.embeddings as e join rag.chunks as c on c.id = e.chunk_id
    where c.document_id = (select s.id from stored as s) order by c.chunk_index $$,
    $$ values
        (0, 'fake', 'fake model', 1024, pg_temp.vec(1), 'input onet', null::uuid, '/add'),
        (1, 'fake', 'fake model', 1024, pg_temp.vec(0, 1), 'input twot', null, '/add') $$,
    'each chunk has the vector that it names, of the configuration of the run'
);
select row_eq(
    $$ select i.action, i.status, i.document_id, i.old_hash, i.new_hash, i.chunks_written,
        i.embeddings_written, i.embeddings_reused
    from rag.ingest_run_items as i where i.run_id = pg_temp.run() $$,
    row(
        'add'::text, 'done'::text, (select s.id from stored as s), null::text, 'h1'::text, 2, 2, 0
    ), 'the item is done, with the hash of the bytes that were stored'
);
select is(
    pg_temp.counted(),
    'added 1, updated 0, moved 0, embedded 0, deleted 0, skipped 0, failed 0, '
    || 'chunks 2, embeddings 2, reused 0', 'a new file is counted'
);
select throws_ok(
    $$ select pg_temp.store('h1', array[pg_temp.chunk(0, 'one', 1)], array[pg_temp.vec(1)]) $$,
    'RG005', null, 'a file is stored once in a run'
);

-- replace_document: a changed file ----------------------------------------------------------------

do $$ begin
    perform pg_temp.start('/change', 'other', 'a.md=1');
    perform pg_temp.store(
        '1', array[pg_temp.chunk(0, 'A', 1), pg_temp.chunk(1, 'B', 2), pg_temp.chunk(2, 'C', 3)],
        array[pg_temp.vec(0.6, 0.8), pg_temp.vec(0.8, 0.6), pg_temp.vec(0, -1)]
    );
    perform pg_temp.start('/change', 'fake', 'a.md=1');
    perform rag.add_embeddings(
        pg_temp.run(), 'a.md', array_agg(c.id order by c.chunk_index),
        array['input At', 'input Bt', 'input Ct'],
        array[pg_temp.vec(1), pg_temp.vec(0, 1), pg_temp.vec(-1)]
    )
    from rag.chunks as c join rag.documents as d on d.id = c.document_id
    where d.vault_path = '/change';
end $$;
create temp table before_change as
select d.id, d.created_at, d.updated_at, array_agg(c.id) as chunk_ids
from rag.documents as d join rag.chunks as c on c.document_id = d.id
where d.vault_path = '/change' group by d.id;
do $$ begin perform pg_temp.start('/change', 'fake', 'a.md=2'); end $$;
select is(
    pg_temp.store(
        '2', array[
            pg_temp.chunk(0, 'new', 2), pg_temp.chunk(1, 'A'), pg_temp.chunk(2, 'B2', 1),
            pg_temp.chunk(3, 'C')
        ], array[pg_temp.vec(0.28, 0.96), pg_temp.vec(-0.6, 0.8)]
    ), (select b.id from before_change as b), 'a changed document keeps its id'
);
select is(
    pg_temp.held('/change'),
    'a.md 0 new: fake -0.6/0.8; a.md 1 A: fake 1/0, other 0.6/0.8; a.md 2 B2: fake 0.28/0.96; '
    || 'a.md 3 C: fake -1/0, other 0/-1',
    'unchanged chunks keep the vectors of all providers wherever they are now; others are new'
);
select ok(
    (
        select d.content_hash = '2' and d.created_at = b.created_at and d.updated_at > b.updated_at
            and not exists (select 1 from rag.chunks as c where c.id = any(b.chunk_ids))
        from rag.documents as d join before_change as b on b.id = d.id
    ), 'a changed document has the new hash and new chunks, and says when'
);
select is(
    pg_temp.counted(),
    'added 0, updated 1, moved 0, embedded 0, deleted 0, skipped 0, failed 0, '
    || 'chunks 4, embeddings 2, reused 2', 'a changed file is counted, with what it reused'
);
do $$ begin
    perform pg_temp.start('/change', 'third', 'a.md=3');
    perform pg_temp.store('3', array[pg_temp.chunk(0, 'C', 1), pg_temp.chunk(1, 'D', 2)],
        array[pg_temp.vec(0, 1), pg_temp.vec(1)]);
end $$;
select is(
    pg_temp.held('/change'),
    'a.md 0 C: fake -1/0, other 0/-1, third 0/1; a.md 1 D: third 1/0',
    'unchanged chunks keep the vectors of other providers when all of this one are new'
);
do $$ begin
    perform pg_temp.start('/parts', 'other', 'a.md=1');
    perform pg_temp.store('1', array[
        pg_temp.chunk(0, 'same', 1), pg_temp.chunk(1, 'tag', 1), pg_temp.chunk(2, 'head', 1),
        pg_temp.chunk(3, 'link', 1)
    ], array[pg_temp.vec(1)]);
    perform pg_temp.start('/parts', 'fake', 'a.md=2');
    perform pg_temp.store('2', array[
        pg_temp.chunk(0, 'same', 1), pg_temp.chunk(1, 'tag', 1, 'u'),
        pg_temp.chunk(2, 'head', 1, 't', 'I'),
        pg_temp.chunk(3, 'link', 1) || '{"wikilinks": ["Other page"]}'
    ], array[pg_temp.vec(0, 1)]);
end $$;
select is(
    pg_temp.held('/parts'),
    'a.md 0 same: fake 0/1, other 1/0; a.md 1 tag: fake 0/1; a.md 2 head: fake 0/1; '
    || 'a.md 3 link: fake 0/1',
    'a chunk with other tags, another heading or other links is not an unchanged one'
);

-- replace_document: a moved file ------------------------------------------------------------------

do $$ begin
    perform pg_temp.start('/move', 'fake', 'a.md=m');
    perform pg_temp.store('m', array[pg_temp.chunk(0, 'M', 1), pg_temp.chunk(1, 'N', 2)],
        array[pg_temp.vec(1), pg_temp.vec(0, 1)]);
    insert into rag.embeddings (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
    )
    select c.id, 'other', 'other model', 1024, pg_temp.vec(1)
    from rag.chunks as c join rag.documents as d on d.id = c.document_id
    where d.vault_path = '/move';
end $$;
create temp table before_move as
select d.id from rag.documents as d where d.vault_path = '/move';
do $$ begin perform pg_temp.start('/move', 'fake', 'sub/b.md=m'); end $$;
select is(
    rag.replace_document(
        pg_temp.run(), 'sub/b.md', pg_temp.doc('m', 'sub/b.md'),
        jsonb_build_array(pg_temp.chunk(0, 'M'), pg_temp.chunk(1, 'N', 1)), array[pg_temp.vec(-1)]
    ), (select b.id from before_move as b), 'a moved document keeps its id'
);
select is(
    pg_temp.held('/move'), 'sub/b.md 0 M: fake 1/0; sub/b.md 1 N: fake -1/0',
    'a moved document has its new path, and of the vectors those whose text is known to be the same'
);
select is(
    (
        select array_agg(distinct d.relative_path || ' ' || d.file_path || ' ' || c.file_path)
        from rag.documents as d join rag.chunks as c on c.document_id = d.id
        where d.vault_path = '/move'
    ), array['sub/b.md /x/sub/b.md /x/sub/b.md'], 'all paths are the new ones'
);
select is(
    pg_temp.counted(),
    'added 0, updated 0, moved 1, embedded 0, deleted 0, skipped 0, failed 0, '
    || 'chunks 2, embeddings 1, reused 1', 'a moved file is counted'
);
do $$ begin
    perform pg_temp.start('/moves', 'fake', 'a=same', 'b=same');
    perform rag.replace_document(
        pg_temp.run(), p, pg_temp.doc('same', p), jsonb_build_array(pg_temp.chunk(0, 'same', 1)),
        array[pg_temp.vec(1)]
    ) from unnest(array['a', 'b']) as u (p);
end $$;
create temp table before_moves as
select d.id, d.relative_path as path from rag.documents as d where d.vault_path = '/moves';
do $$ begin
    perform pg_temp.start('/moves', 'fake', 'x=same', 'y=same');
    perform rag.replace_document(
        pg_temp.run(), p, pg_temp.doc('same', p), jsonb_build_array(pg_temp.chunk(0, 'same'))
    ) from unnest(array['y', 'x']) as u (p);
end $$;
select results_eq(
    $$ select b.path, d.relative_path from before_moves as b join rag.documents as d using (id)
    order by b.path $$, $$ values ('a', 'x'), ('b', 'y') $$,
    'two files of the same content move each from a path of its own'
);

-- replace_document: the same paragraph twice, no paragraph at all ---------------------------------

do $$ begin
    perform pg_temp.start('/twice', 'fake', 'a.md=1');
    perform pg_temp.store('1', array[pg_temp.chunk(0, 'P', 1), pg_temp.chunk(1, 'P', 1)],
        array[pg_temp.vec(1)]);
end $$;
select is(
    pg_temp.held('/twice'), 'a.md 0 P: fake 1/0; a.md 1 P: fake 1/0',
    'a paragraph that stands twice in a file is stored twice'
);
do $$ begin
    perform pg_temp.start('/twice', 'fake', 'a.md=2');
    perform pg_temp.store('2', array[
        pg_temp.chunk(0, 'P'), pg_temp.chunk(1, 'Q', 1), pg_temp.chunk(2, 'P'),
        pg_temp.chunk(3, 'P')
    ], array[pg_temp.vec(0, 1)]);
end $$;
select is(
    pg_temp.held('/twice'),
    'a.md 0 P: fake 1/0; a.md 1 Q: fake 0/1; a.md 2 P: fake 1/0; a.md 3 P: fake 1/0',
    'a third copy takes the vector of the others'
);
do $$ begin
    perform pg_temp.start('/twice', 'fake', 'a.md=3');
    perform pg_temp.store('3', array[pg_temp.chunk(0, 'P')]);
end $$;
select is(pg_temp.held('/twice'), 'a.md 0 P: fake 1/0', 'copies can go away again');

do $$ begin
    perform pg_temp.start('/empty', 'fake', 'a.md=1');
    perform pg_temp.store('1', '{}');
end $$;
select is(
    pg_temp.item() || ', ' || (
        select count(*) from rag.documents as d where d.vault_path = '/empty'
    ), 'add done, 1', 'a file without text is a document without chunks'
);
do $$ begin perform pg_temp.start('/empty', 'fake', 'a.md=1'); end $$;
select is(pg_temp.item(), 'skip done', 'a file without text is not planned again');
do $$ begin
    perform pg_temp.start('/twice', 'fake', 'a.md=4');
    perform pg_temp.store('4', '{}');
end $$;
select is(pg_temp.held('/twice'), '', 'a file may lose all its text');

-- replace_document: vectors of other documents ----------------------------------------------------

do $$ begin perform pg_temp.start('/reuse', 'fake', 'a.md=1'); end $$;
select throws_ok(
    $$ select pg_temp.store('1', array[pg_temp.chunk(0, 'one'), pg_temp.chunk(1, 'B2')]) $$,
    'RG007', '1 of 2 chunks of a.md have neither a new nor a stored embedding',
    'a vector of a text that is gone is not known any more'
);
do $$ begin
    perform pg_temp.store('1', array[pg_temp.chunk(0, 'one'), pg_temp.chunk(1, 'N')]);
end $$;
select is(
    pg_temp.held('/reuse') || ' ' || pg_temp.counted(),
    'a.md 0 one: fake 1/0; a.md 1 N: fake -1/0 '
    || 'added 1, updated 0, moved 0, embedded 0, deleted 0, skipped 0, failed 0, '
    || 'chunks 2, embeddings 0, reused 2',
    'a text that another vault holds is not embedded again'
);
do $$ begin perform pg_temp.start('/provider', 'other', 'a.md=1'); end $$;
select throws_ok(
    $$ select pg_temp.store('1', array[pg_temp.chunk(0, 'one')]) $$, 'RG007',
    '1 of 1 chunks of a.md have neither a new nor a stored embedding',
    'a vector of another provider does not stand in'
);
do $$ begin
    perform pg_temp.store('1', array[pg_temp.chunk(0, 'one', 1)], array[pg_temp.vec(0.6, 0.8)]);
    perform pg_temp.start('/provider2', 'other', 'a.md=1');
    perform pg_temp.store('1', array[pg_temp.chunk(0, 'one')]);
    perform pg_temp.start('/provider3', 'fake', 'a.md=1');
    perform pg_temp.store('1', array[pg_temp.chunk(0, 'one')]);
end $$;
select is(
    pg_temp.held('/provider2') || '; ' || pg_temp.held('/provider3'),
    'a.md 0 one: other 0.6/0.8; a.md 0 one: fake 1/0',
    'of the vectors of a text that of the right provider is taken'
);

-- replace_document: what is refused, and that nothing of it is stored -----------------------------

do $$ begin
    perform pg_temp.start('/refused', 'fake', 'a.md=1');
    perform pg_temp.store('1', array[pg_temp.chunk(0, 'R', 1)], array[pg_temp.vec(1)]);
    perform pg_temp.start('/refused', 'fake', 'a.md=2', 'b.md=3');
end $$;
select throws_ok(
    format('select pg_temp.store(''2'', array[%s], array[%s]::public.vector[])', chunks, vectors),
    code, message, name
)
from (values
    (
        'pg_temp.chunk(0, ''R''), pg_temp.chunk(1, ''S1'', 1), pg_temp.chunk(2, ''S2'')',
        'pg_temp.vec(1)', 'RG007',
        '1 of 3 chunks of a.md have neither a new nor a stored embedding',
        'a chunk without vector is refused'
    ),
    (
        'pg_temp.chunk(0, ''S'', 2)', 'pg_temp.vec(1)', 'RG007',
        '1 of 1 chunks of a.md have neither a new nor a stored embedding',
        'a place behind the last vector is refused'
    ),
    (
        'pg_temp.chunk(0, ''S'', 1)', 'null', 'RG007',
        '1 of 1 chunks of a.md have neither a new nor a stored embedding',
        'a null vector for a text that is not known is refused'
    ),
    (
        'pg_temp.chunk(0, ''S'', 1)', 'pg_temp.vec(3)', 'RG001',
        'a vector for a.md has the length 3, expected 1', 'a vector not of length one is refused'
    ),
    (
        'pg_temp.chunk(0, ''S'', 1)', 'pg_temp.vec(0)', 'RG001',
        'a vector for a.md has the length 0, expected 1', 'a zero vector is refused'
    ),
    (
        'pg_temp.chunk(0, ''S'', 1)', '''[1]''', 'RG004',
        'embedding dimension must be 1024, got 1', 'a vector of another dimension is refused'
    ),
    (
        'pg_temp.chunk(0, ''S'', 1), pg_temp.chunk(0, ''T'', 1)', 'pg_temp.vec(1)', '23505', null,
        'two chunks at the same place are refused'
    )
) as u (chunks, vectors, code, message, name);
select throws_ok(
    format(
        'select rag.replace_document(%s, %L, pg_temp.doc(''2''), ''[]'')',
        pg_temp.run() + shift, path
    ), 'RG005', null, name
)
from (values
    (0, 'c.md', 'a path that is not planned is refused'),
    (1, 'a.md', 'a run that does not exist is refused'),
    (-1, 'a.md', 'a run that has ended is refused')
) as u (shift, path, name);
select is(
    pg_temp.held('/refused') || ', ' || pg_temp.item(), 'a.md 0 R: fake 1/0, change pending',
    'after an error the earlier version is there, and the item is still to be done'
);
select is(
    (select d.content_hash from rag.documents as d where d.vault_path = '/refused'), '1',
    'after an error the document has its earlier hash, so that the next run tries again'
);
select is(
    pg_temp.counted(),
    'added 0, updated 0, moved 0, embedded 0, deleted 0, skipped 0, failed 0, '
    || 'chunks 0, embeddings 0, reused 0', 'after an error nothing is counted'
);
select lives_ok(
    $$ select rag.replace_document(pg_temp.run(), 'b.md', pg_temp.doc('3', 'b.md'),
        jsonb_build_array(pg_temp.chunk(0, 'U', 1)), array[pg_temp.vec(1)]) $$,
    'after an error the next file can be stored'
);

-- known_input_hashes ------------------------------------------------------------------------------

select results_eq(
    $$ select k.input_hash from rag.known_input_hashes(
        array['input onet', 'input Pt', 'input ?', null, 'input Nt'], 'fake', 'fake model', 1024
    ) as k order by k.input_hash $$,
    $$ values ('input Nt'), ('input onet') $$, 'hashes of stored vectors are known, each once'
);
select is_empty(
    format('select * from rag.known_input_hashes(array[''input onet''], %L, %L, %s)', p, m, d),
    format('%s, %s, %s has not embedded what another configuration has', p, m, d)
)
from (values ('other', 'fake model', 1024), ('fake', 'm', 1024), ('fake', 'fake model', 3))
as u (p, m, d);
select is_empty(
    format('select * from rag.known_input_hashes(%L, ''fake'', ''fake model'', 1024)', h),
    'no hashes, none known'
)
from (values ('{}'), (null)) as u (h);

-- list_chunk_inputs, add_embeddings ---------------------------------------------------------------

do $$ begin
    perform pg_temp.start('/embed', 'fake', 'a.md=1', 'b.md=2');
    perform pg_temp.store('1', array[
        pg_temp.chunk(0, 'X', 1), pg_temp.chunk(1, 'Y', 2, 'u'), pg_temp.chunk(2, 'Z', 3)
    ], array[pg_temp.vec(1), pg_temp.vec(0, 1), pg_temp.vec(-1)]);
    perform rag.replace_document(pg_temp.run(), 'b.md', pg_temp.doc('2', 'b.md'),
        jsonb_build_array(pg_temp.chunk(0, 'W', 1)), array[pg_temp.vec(1)]);
    perform pg_temp.start('/embed', 'other', 'a.md=1', 'b.md=2');
end $$;
create temp view embed_ids as
select c.id, c.relative_path, c.chunk_index
from rag.chunks as c join rag.documents as d on d.id = c.document_id
where d.vault_path = '/embed';
create function pg_temp.ids(variadic p_indexes integer[]) returns bigint[] language sql as $$
    select array_agg(e.id order by u.place)
    from unnest(p_indexes) with ordinality as u (chunk_index, place)
    join embed_ids as e on e.chunk_index = u.chunk_index and e.relative_path = 'a.md'
$$;

select is(
    pg_temp.item(), 'embed pending', 'a file that another provider embedded is to be embedded'
);
select results_eq(
    'select * from rag.list_chunk_inputs(pg_temp.run(), ''a.md'')',
    $$ select e.id, u.content, '{Top,H}'::text[], 'a.md', u.tags, '{Page}'::text[]
    from (values (0, 'X', '{t}'::text[]), (1, 'Y', '{u}'), (2, 'Z', '{t}'))
    as u (chunk_index, content, tags)
    join embed_ids as e on e.chunk_index = u.chunk_index and e.relative_path = 'a.md'
    order by u.chunk_index $$,
    'its chunks come with all that an embedder reads, in their order'
);
select is_empty(
    format('select * from rag.list_chunk_inputs(%s, %L)', pg_temp.run() + shift, path), name
)
from (values
    (-1, 'a.md', 'chunks that the provider of the run has embedded do not come'),
    (0, 'c.md', 'an unknown path has no chunks'),
    (1, 'a.md', 'an unknown run has no chunks')
) as u (shift, path, name);
select throws_ok(
    format(
        'select rag.add_embeddings(pg_temp.run(), ''a.md'', pg_temp.ids(0, 1, 2), '
        || 'array[''i0'', ''i1'', ''i2''], array[%s]::public.vector[])', vectors
    ), code, message, name
)
from (values
    (
        'pg_temp.vec(1), pg_temp.vec(1), null', 'RG007',
        'some chunks of a.md have neither a new nor a stored embedding',
        'adding embeddings for some of the chunks only is refused'
    ),
    (
        'pg_temp.vec(1), pg_temp.vec(1), pg_temp.vec(0)', 'RG001',
        'a vector for a.md has the length 0, expected 1', 'adding a zero vector is refused'
    ),
    (
        'pg_temp.vec(1), pg_temp.vec(1), ''[1,0]''', 'RG004',
        'embedding dimension must be 1024, got 2', 'adding a vector of another dimension is refused'
    )
) as u (vectors, code, message, name);
select throws_ok(
    $$ select rag.add_embeddings(pg_temp.run(), 'c.md', '{}', '{}', '{}') $$, 'RG005', null,
    'embeddings for a path that is not planned are refused'
);
select throws_ok(
    $$ select rag.add_embeddings(0, 'a.md', '{}', '{}', '{}') $$, 'RG005', null,
    'embeddings for a run that does not exist are refused'
);
select is(
    (
        select count(*) from rag.embeddings as e join embed_ids as c on c.id = e.chunk_id
        where e.embedding_provider = 'other'
    ), 0::bigint, 'after an error no embedding is stored'
);
select is(
    rag.add_embeddings(
        pg_temp.run(), 'a.md', pg_temp.ids(1, 0, 2), array['input Y2', 'input At', 'input Y2'],
        array[pg_temp.vec(0.6, 0.8), pg_temp.vec(0.8, 0.6), null]
    ), 2, 'the number of new embeddings comes back'
);
select is(
    pg_temp.held('/embed'),
    'a.md 0 X: fake 1/0, other 0.8/0.6; a.md 1 Y: fake 0/1, other 0.6/0.8; '
    || 'a.md 2 Z: fake -1/0, other 0.6/0.8; b.md 0 W: fake 1/0',
    'each chunk has its vector; one that is not given is taken from the same text'
);
select is(
    pg_temp.counted(),
    'added 0, updated 0, moved 0, embedded 1, deleted 0, skipped 0, failed 0, '
    || 'chunks 0, embeddings 2, reused 1', 'an embedded file is counted'
);
select row_eq(
    $$ select i.status, i.new_hash, i.document_id = c.document_id from rag.ingest_run_items as i,
        (select min(c.document_id) as document_id from rag.chunks as c
        where c.id = any(pg_temp.ids(0))) as c
    where i.run_id = pg_temp.run() and i.relative_path = 'a.md' $$,
    row('done'::text, '1'::text, true), 'the item of an embedded file is done, its hash as planned'
);
select results_eq(
    $$ select e.input_hash, e.scope
    from rag.embeddings as e join embed_ids as c on c.id = e.chunk_id
    where e.embedding_provider = 'other' order by c.chunk_index $$,
    $$ values ('input At', '/embed'), ('input Y2', '/embed'), ('input Y2', '/embed') $$,
    'added embeddings know their text and their vault'
);

-- fail_item, retract_item -------------------------------------------------------------------------

do $$ begin
    perform pg_temp.start('/fail', 'fake', 'a.md=1', 'old.md=2', 'gone.md=3');
    perform rag.replace_document(pg_temp.run(), p, pg_temp.doc(h, p),
        jsonb_build_array(pg_temp.chunk(0, p, 1)), array[pg_temp.vec(1)])
    from (values ('a.md', '1'), ('old.md', '2'), ('gone.md', '3')) as u (p, h);
    perform pg_temp.start('/fail', 'fake', 'a.md=11', 'new.md=2', 'gone.md=33', 'never.md=4');
    perform rag.fail_item(pg_temp.run(), 'a.md', 'bad byte at 7');
end $$;
select is(pg_temp.item(), 'change failed bad byte at 7', 'a failed file has its reason');
select is(
    pg_temp.held('/fail'),
    'a.md 0 a.md: fake 1/0; gone.md 0 gone.md: fake 1/0; old.md 0 old.md: fake 1/0',
    'the earlier version of a failed file stays'
);
select is(
    pg_temp.counted(),
    'added 0, updated 0, moved 0, embedded 0, deleted 0, skipped 0, failed 1, '
    || 'chunks 0, embeddings 0, reused 0', 'a failed file is counted'
);
select throws_ok(
    $$ select rag.fail_item(pg_temp.run(), 'a.md', 'x') $$, 'RG005', null, 'a file fails once'
);
select throws_ok(
    $$ select pg_temp.store('11', '{}') $$, 'RG005', null, 'a failed file is not stored any more'
);

do $$ begin
    perform rag.retract_item(pg_temp.run(), p)
    from unnest(array['gone.md', 'new.md', 'never.md']) as u (p);
end $$;
select is(
    array[pg_temp.item('gone.md'), pg_temp.item('old.md'), pg_temp.item('never.md')],
    array['delete pending', 'delete pending', 'skip done'],
    'a vanished file is a deletion to come, under its earlier path, or nothing if it was never stored'
);
do $$ begin
    perform rag.delete_documents(pg_temp.run());
end $$;
select is(
    pg_temp.held('/fail'), 'a.md 0 a.md: fake 1/0',
    'a file that vanished after the plan is deleted, under its earlier path too'
);
select is(
    array[pg_temp.item('gone.md'), pg_temp.item('old.md')], array['delete done', 'delete done'],
    'and is then deleted'
);
select is(
    pg_temp.counted(),
    'added 0, updated 0, moved 0, embedded 0, deleted 2, skipped 1, failed 1, '
    || 'chunks 0, embeddings 0, reused 0', 'vanished files are counted'
);
select throws_ok(
    format('select rag.retract_item(%s, %L)', id, path), 'RG005', null, name
)
from (values
    (pg_temp.run(), 'gone.md', 'a file vanishes once'), (0, 'gone.md', 'no run, nothing vanishes')
) as u (id, path, name);

-- delete_documents --------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.start('/delete', 'fake', 'a.md=1', 'b.md=2', 'c.md=3');
    perform rag.replace_document(pg_temp.run(), p, pg_temp.doc(h, p),
        jsonb_build_array(pg_temp.chunk(0, p, 1)), array[pg_temp.vec(1)])
    from (values ('a.md', '1'), ('b.md', '2'), ('c.md', '3')) as u (p, h);
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values ('/delete2', '/delete2/b.md', 'b.md', '2');
    perform pg_temp.start('/delete', 'fake', 'a.md=1');
end $$;
select is(rag.delete_documents(pg_temp.run()), 2, 'the number of deleted documents comes back');
select is(
    pg_temp.held('/delete'), 'a.md 0 a.md: fake 1/0',
    'documents whose files are gone are deleted with their chunks and embeddings'
);
select is(
    (select count(*) from rag.documents as d where d.vault_path = '/delete2'), 1::bigint,
    'a document of the same path in another vault stays'
);
select is(
    pg_temp.counted(),
    'added 0, updated 0, moved 0, embedded 0, deleted 2, skipped 1, failed 0, '
    || 'chunks 0, embeddings 0, reused 0', 'deleted files are counted'
);
select is(rag.delete_documents(pg_temp.run()), 0, 'nothing is deleted twice');
do $$ begin perform pg_temp.start('/delete', 'fake', variadic '{}'); end $$;
select is(rag.delete_documents(pg_temp.run()), 0, 'withheld deletions are not done');
select is(pg_temp.held('/delete'), 'a.md 0 a.md: fake 1/0', 'a withheld document stays');
select throws_ok('select rag.delete_documents(0)', 'RG005', null, 'no run, nothing is deleted');

-- Counters ----------------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.start('/sum', 'fake', 'a=1', 'b=2', 'c=3', 'd=4', 'e=5', 'f=6');
    perform rag.replace_document(pg_temp.run(), p, pg_temp.doc(h, p),
        jsonb_build_array(pg_temp.chunk(0, p, 1)), array[pg_temp.vec(1)])
    from (values ('a', '1'), ('b', '2'), ('c', '3'), ('d', '4'), ('e', '5'), ('f', '6'))
    as u (p, h);
    delete from rag.embeddings as e using rag.chunks as c, rag.documents as d
    where e.chunk_id = c.id and c.document_id = d.id and d.vault_path = '/sum' and c.content = 'd';
    -- a skip, b change, c moves to m, d embed, e delete, f fails, n is new
    perform pg_temp.start('/sum', 'fake', 'a=1', 'b=22', 'm=3', 'd=4', 'f=66', 'n=7');
    perform rag.replace_document(pg_temp.run(), p, pg_temp.doc(h, p),
        jsonb_build_array(pg_temp.chunk(0, t), pg_temp.chunk(1, p || ' new', 1)),
        array[pg_temp.vec(1)])
    from (values ('b', '22', 'b'), ('m', '3', 'c'), ('n', '7', 'a')) as u (p, h, t);
    perform rag.add_embeddings(
        pg_temp.run(), 'd', array[l.chunk_id], array['input dt'], array[pg_temp.vec(1)]
    ) from rag.list_chunk_inputs(pg_temp.run(), 'd') as l;
    perform rag.fail_item(pg_temp.run(), 'f', 'x');
    perform rag.delete_documents(pg_temp.run());
end $$;
select is(
    pg_temp.counted(),
    'added 1, updated 1, moved 1, embedded 1, deleted 1, skipped 1, failed 1, '
    || 'chunks 6, embeddings 4, reused 3', 'a run counts each kind of work'
);
select row_eq(
    $$ select r.documents_added, r.documents_updated, r.documents_moved, r.documents_embedded,
        r.documents_deleted, r.documents_skipped, r.documents_failed, r.chunks_written,
        r.embeddings_written, r.embeddings_reused
    from rag.ingest_runs as r where r.id = pg_temp.run() $$,
    (
        select row(
            count(*) filter (where i.action = 'add' and i.status = 'done')::integer,
            count(*) filter (where i.action = 'change' and i.status = 'done')::integer,
            count(*) filter (where i.action = 'move')::integer,
            count(*) filter (where i.action = 'embed')::integer,
            count(*) filter (where i.action = 'delete')::integer,
            count(*) filter (where i.action = 'skip')::integer,
            count(*) filter (where i.status = 'failed')::integer,
            sum(i.chunks_written)::integer, sum(i.embeddings_written)::integer,
            sum(i.embeddings_reused)::integer
        ) from rag.ingest_run_items as i where i.run_id = pg_temp.run()
    ), 'the counters of a run are the sums of its items'
);

-- Everything stored by this file ------------------------------------------------------------------

select is_empty(
    $$ select c.id from rag.chunks as c join rag.documents as d on d.id = c.document_id
    where c.chunk_index < 0 or (c.relative_path, c.file_path, c.frontmatter, c.scope)
        is distinct from (d.relative_path, d.file_path, d.frontmatter, d.scope) $$,
    'no chunk is left aside, or differs from its document in what it copies'
);
select is_empty(
    $$ select c.id from rag.chunks as c join rag.documents as d on d.id = c.document_id
    where (
        select count(*) from rag.chunks as x where x.document_id = d.id
    ) <> (
        select max(x.chunk_index) + 1 from rag.chunks as x where x.document_id = d.id
    ) $$,
    'the chunks of a document are numbered without gaps'
);
select is_empty(
    $$ select c.id
    from rag.chunks as c
    join rag.documents as d on d.id = c.document_id
    left join rag.chunk_terms as t on t.chunk_id = c.id
    where d.scope is not null and (not c.has_terms or (t.id, t.scope, t.owner, t.terms) is distinct from (
        c.id, d.vault_path, d.owner,
        rag.weigh_chunk(c.content, c.heading_path, c.relative_path, c.tags, c.frontmatter)
    )) $$,
    'each chunk has its terms, also where the file was moved or changed'
);
create function pg_temp.told(p_vault text) returns setof bigint language sql as $$
    select s.chunks from rag.term_statistics(array[
        0, (select rag.term_dim(t) from unnest(rag.lexical_terms('Top')) as t)
    ], p_vault) as s order by s.dim
$$;
select set_eq(
    'select unnest(array[1, 2]), c from pg_temp.told(null) as c',
    'select unnest(array[1, 2]), count(*) from rag.chunks as c', 'all of them count'
);
select ok(rag.count_terms() > 0, 'when they are counted');
select set_eq(
    'select unnest(array[1, 2]), c from pg_temp.told(null) as c',
    'select unnest(array[1, 2]), count(*) from rag.chunks as c', 'the same number counts'
);
select is_empty(
    $$ select f.* from rag.find_inconsistencies() as f where f.problem ~ 'term' $$,
    'terms and counts fit together'
);

select * from finish();
rollback;
