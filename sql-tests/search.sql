-- Tests of db/functions/search.sql: the search, how it went, the decision to answer.

begin;
select plan(145);

-- a vector whose first coordinates are given and whose others are 0
create function pg_temp.vec(variadic p_first real[]) returns public.vector language sql immutable
as 'select (p_first || array_fill(0::real, array[1024 - cardinality(p_first)]))::public.vector';

-- one chunk in its document, with one vector; only columns of the contract are written
create function pg_temp.store(
    p_source text, p_vector public.vector, p_vault text default '/v', p_index integer default 0,
    p_heading text[] default '{}', p_provider text default 'fake', p_model text default 'm'
) returns void language sql as $$
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values (p_vault, p_vault || '/' || p_source, p_source, 'd')
    on conflict (vault_path, relative_path) do nothing;
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, heading_path, metadata,
        content_hash
    )
    select d.id, p_index, 'text of ' || p_source, d.file_path, d.relative_path, p_heading,
        '{"page": 3}', 'hash of ' || p_source
    from rag.documents as d where d.vault_path = p_vault and d.relative_path = p_source
    on conflict do nothing;
    insert into rag.embeddings (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
    )
    select c.id, p_provider, p_model, 1024, p_vector
    from rag.chunks as c join rag.documents as d on d.id = c.document_id
    where d.vault_path = p_vault and d.relative_path = p_source and c.chunk_index = p_index;
$$;

-- sources in the order of a search, each with its score
create function pg_temp.found(
    p_query public.vector, p_top_k integer default 20, p_provider text default 'fake',
    p_model text default 'm'
) returns text language sql as $$
    select coalesce(string_agg(s.source || ' ' || round(s.score::numeric, 4), ', '), '')
    from rag.search_chunks(p_query, p_provider, p_model, 1024, p_top_k) as s
$$;

-- similarity_score --------------------------------------------------------------------------------

select is(rag.similarity_score(d), s, format('distance %s is score %s', d, s))
from (values
    (0.0::float8, 1.0::float8), (0.25, 0.75), (1.0, 0.0), (1.5, 0.0), (2.0, 0.0), (-1e-9, 1.0)
) as u (d, s);

-- search_chunks: what is refused ------------------------------------------------------------------

select throws_ok(
    $$ select * from rag.search_chunks(pg_temp.vec(1), 'fake', 'm', 1024) $$, 'RG003',
    'nothing is indexed for provider fake, model m, dim 1024', 'an empty index is not ready'
);

do $$ begin perform pg_temp.store('a.md', pg_temp.vec(1)); end $$;

select throws_ok(
    format('select * from rag.search_chunks(pg_temp.vec(1), %L, %L, 1024)', p, m), 'RG003', null,
    format('nothing is indexed for provider %L, model %L', p, m)
)
from (values ('fake', 'x'), ('x', 'm'), ('Fake', 'm'), ('fake', '%'), (null, 'm')) as u (p, m);
select throws_ok(
    format('select * from rag.search_chunks(pg_temp.vec(1), ''fake'', ''m'', 1024, %s)', k),
    'RG001', format('top_k must be between 1 and 20, got %s', k), format('top_k %s is refused', k)
)
from unnest(array['0', '21', '-5', 'null']) as u (k);
select throws_ok(
    format('select * from rag.search_chunks(%s::public.vector, ''fake'', ''m'', %s)', v, d),
    'RG004', m, t
)
from (values
    (
        '''[1,2,3]''', 1024, 'the vector has 3 dimensions, expected 1024',
        'a short vector is refused'
    ),
    (
        'pg_temp.vec(1)', 768, 'embedding dimension must be 1024, got 768',
        'another dimension than that of the table is refused'
    ),
    (
        '''[1,2,3]''', 3, 'embedding dimension must be 1024, got 3',
        'a dimension that fits the vector, but not the table, is refused'
    )
) as u (v, d, m, t);
select throws_ok(
    $$ select * from rag.search_chunks(null, 'fake', 'm', 1024) $$, 'RG001',
    'the vector of the question is null', 'a null vector is refused'
);
select throws_ok(
    $$ select * from rag.search_chunks(pg_temp.vec(1), 'fake', 'm', 1024, 5, '{"tag": "x"}') $$,
    'RG001', 'filter has an unknown key: tag', 'a filter with an unknown key is refused'
);

-- search_chunks: what comes back ------------------------------------------------------------------

select results_eq(
    $$ select * from rag.search_chunks(pg_temp.vec(1), 'fake', 'm', 1024) $$,
    $$ select c.id, '/v', 'a.md', '{}'::text[], 0, 'text of a.md', 'hash of a.md',
        '{"page": 3}'::jsonb, 1.0::float8 from rag.chunks as c $$,
    'a row inserted with only the columns of the contract is found, with all that a caller needs'
);
select is(
    (
        select array_agg(a.name order by a.place)
        from pg_proc as p,
            unnest(p.proargnames, p.proargmodes) with ordinality as a (name, mode, place)
        where p.oid = 'rag.search_chunks'::regproc and a.mode = 't'
    ),
    array[
        'chunk_id', 'vault_path', 'source', 'heading_path', 'chunk_index', 'content',
        'content_hash', 'metadata', 'score'
    ], 'the columns are those that callers read'
);

do $$ begin
    perform pg_temp.store('half.md', pg_temp.vec(0.6, 0.8));
    perform pg_temp.store('right.md', pg_temp.vec(0, 1));
    perform pg_temp.store('behind.md', pg_temp.vec(-0.6, 0.8));
    perform pg_temp.store('opposite.md', pg_temp.vec(-1));
end $$;
select is(
    pg_temp.found(pg_temp.vec(1)),
    'a.md 1.0000, half.md 0.6000, right.md 0.0000, behind.md 0.0000, opposite.md 0.0000',
    'the nearest comes first; a negative similarity has the score 0 and keeps its place'
);
select is(
    pg_temp.found(pg_temp.vec(0.001)), pg_temp.found(pg_temp.vec(1)),
    'the length of the vector of the question does not matter'
);
select is(
    (select min(s.score) from rag.search_chunks(pg_temp.vec(1), 'fake', 'm', 1024) as s),
    0::float8, 'no score is below 0'
);
select is(
    pg_temp.found(pg_temp.vec(1), 2), 'a.md 1.0000, half.md 0.6000', 'top_k cuts the list'
);

do $$ begin
    for i in 1..20 loop
        perform pg_temp.store('a.md', pg_temp.vec(1, i), p_index => i);
    end loop;
end $$;
select is(
    (select count(*) from rag.search_chunks(pg_temp.vec(1), 'fake', 'm', 1024, k)), k::bigint,
    format('top_k %s gives as many chunks', k)
)
from unnest(array[1, 20]) as u (k);
select is(
    (select count(*) from rag.search_chunks(pg_temp.vec(1), 'fake', 'm', 1024)), 5::bigint,
    'top_k is 5 when not given'
);

-- Other configurations ----------------------------------------------------------------------------

do $$ begin
    for i in 1..50 loop
        perform pg_temp.store('near.md', pg_temp.vec(1, i * 0.001), '/p', i, '{}', 'one', 'm');
        perform pg_temp.store('near.md', pg_temp.vec(1, i * 0.001), '/p', i, '{}', 'two', 'n');
    end loop;
    for i in 1..5 loop
        perform pg_temp.store('far' || i, pg_temp.vec(0.5, 0.5 + i * 0.01), '/p', 0, '{}', 'two');
    end loop;
end $$;
select is(
    pg_temp.found(pg_temp.vec(1), 3, 'two'), 'far1 0.7001, far2 0.6931, far3 0.6862',
    'nearer vectors of another provider or model do not take places'
);
select is(
    pg_temp.found(pg_temp.vec(1), 10, 'two'),
    'far1 0.7001, far2 0.6931, far3 0.6862, far4 0.6794, far5 0.6727',
    'fewer than top_k come back only when there are no more'
);
select is(
    (
        select count(*) from rag.search_chunks(pg_temp.vec(1), 'one', 'm', 1024, 20) as s
        where s.source <> 'near.md'
    ), 0::bigint, 'one configuration sees only its own vectors'
);

-- Ties --------------------------------------------------------------------------------------------

do $$ begin
    -- written in an order that is not the expected one
    perform pg_temp.store('b.md', pg_temp.vec(1), '/w', 0, '{B}', 'tie');
    perform pg_temp.store('b.md', pg_temp.vec(1), '/v', 3, '{B}', 'tie');
    perform pg_temp.store('b.md', pg_temp.vec(1), '/v', 2, '{B}', 'tie');
    perform pg_temp.store('b.md', pg_temp.vec(1), '/v', 1, '{b}', 'tie');
    perform pg_temp.store('b.md', pg_temp.vec(1), '/V', 2, '{B}', 'tie');
    perform pg_temp.store('b.md', pg_temp.vec(1), '/v', 9, '{A,z}', 'tie');
    perform pg_temp.store('b.md', pg_temp.vec(1), '/v', 8, '{A}', 'tie');
    perform pg_temp.store('b.md', pg_temp.vec(1), '/v', 7, '{}', 'tie');
    perform pg_temp.store('a.md', pg_temp.vec(1), '/z', 7, '{Z}', 'tie');
    perform pg_temp.store('B.md', pg_temp.vec(1), '/z', 7, '{Z}', 'tie');
    perform pg_temp.store('ä.md', pg_temp.vec(1), '/a', 0, '{}', 'tie');
    perform pg_temp.store('a/b.md', pg_temp.vec(1), '/a', 0, '{}', 'tie');
    perform pg_temp.store('first.md', pg_temp.vec(1, -0.01), '/z', 0, '{}', 'tie');
    perform pg_temp.store('far.md', pg_temp.vec(1, 0.1), '/a', 0, '{}', 'tie');
end $$;
create temp view tied as
select row_number() over () as place, s.source, s.heading_path, s.chunk_index, s.vault_path
from rag.search_chunks(pg_temp.vec(1, -0.005), 'tie', 'm', 1024, 20) as s;
select results_eq(
    'select source, heading_path, chunk_index, vault_path from tied where source <> ''first.md''',
    $$ values
        ('B.md', '{Z}'::text[], 7, '/z'),
        ('a.md', '{Z}', 7, '/z'),
        ('a/b.md', '{}', 0, '/a'),
        ('b.md', '{}', 7, '/v'),
        ('b.md', '{A}', 8, '/v'),
        ('b.md', '{A,z}', 9, '/v'),
        ('b.md', '{B}', 0, '/w'),
        ('b.md', '{B}', 2, '/V'),
        ('b.md', '{B}', 2, '/v'),
        ('b.md', '{B}', 3, '/v'),
        ('b.md', '{b}', 1, '/v'),
        ('ä.md', '{}', 0, '/a'),
        ('far.md', '{}', 0, '/a')
    $$,
    'ties are broken by source, heading_path, chunk_index and vault, in byte order'
);
select alike(
    (select p.prosrc from pg_proc as p where p.oid = 'rag.rank_chunks'::regproc),
    '%relative_path collate "C"%heading_path collate "C"%vault_path collate "C"%',
    'the order does not depend on the collation of the database'
);
select is(
    (
        select array_agg(s.source || s.vault_path || s.chunk_index)
        from rag.search_chunks(pg_temp.vec(1), 'tie', 'm', 1024, k) as s
    ),
    (
        select (array_agg(s.source || s.vault_path || s.chunk_index))[:k]
        from rag.search_chunks(pg_temp.vec(1), 'tie', 'm', 1024, 20) as s
    ), format('a tie at the end of %s chunks is cut at the same place as in a longer list', k)
)
from unnest(array[1, 4, 8]) as u (k);

-- Zero vectors ------------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.store('zero.md', pg_temp.vec(0), '/v', 0, '{}', 'zero');
end $$;
select is(
    pg_temp.found(pg_temp.vec(1), 20, 'zero'), '', 'a zero vector in the table is never returned'
);
do $$ begin
    perform pg_temp.store('zero.md', pg_temp.vec(0), '/v', 1, '{}', 'zero');
    perform pg_temp.store('match.md', pg_temp.vec(1), '/v', 0, '{}', 'zero');
    perform pg_temp.store('opposite.md', pg_temp.vec(-1), '/v', 0, '{}', 'zero');
end $$;
select is(
    pg_temp.found(pg_temp.vec(1), 4, 'zero'), 'match.md 1.0000, opposite.md 0.0000',
    'zero vectors do not take the places of others'
);
select is(
    pg_temp.found(pg_temp.vec(0), k, 'zero'), '', format('a zero question finds nothing of %s', k)
)
from unnest(array[1, 20]) as u (k);
select throws_ok(
    $$ insert into rag.embeddings (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
    ) select min(c.id), 'none', 'm', 1024, null from rag.chunks as c $$, '23502', null,
    'a row without a vector cannot be stored'
);

-- Deleting ----------------------------------------------------------------------------------------

delete from rag.documents as d where d.relative_path = 'match.md';
select is(
    pg_temp.found(pg_temp.vec(1), 20, 'zero'), 'opposite.md 0.0000',
    'chunks and vectors of a deleted document are gone with it'
);
delete from rag.documents;
select is_empty(
    'select c.id from rag.chunks as c union all select e.id from rag.embeddings as e',
    'with all documents everything is gone'
);

-- search_chunks_plain, explain_search --------------------------------------------------------------

do $$ begin
    perform pg_temp.store('one.md', pg_temp.vec(1));
    perform pg_temp.store('two.md', pg_temp.vec(0.8, 0.6));
    perform pg_temp.store('two again.md', pg_temp.vec(0.8, 0.6));
    perform pg_temp.store('zero.md', pg_temp.vec(0));
    perform pg_temp.store('other.md', pg_temp.vec(1), p_provider => 'x');
end $$;
select results_eq(
    format('select * from rag.search_chunks(pg_temp.vec(%s), ''fake'', ''m'', 1024, %s, %L)', v, k, f),
    format(
        'select * from rag.search_chunks_plain(pg_temp.vec(%s), ''fake'', ''m'', 1024, %s, %L)',
        v, k, f
    ),
    format('the plain statement returns the same for (%s), top_k %s, filter %s', v, k, f)
)
from unnest(array['1', '1, 1', '0', '-1', '1e-20', '1e20', '0, 0, 1']) as v
cross join unnest(array[1, 2, 5]) as k
cross join unnest(array['{}', '{"path_prefix": "two.md"}', '{"vault": "/v"}', '{"vault": "/w"}']) as f;
select throws_ok(
    format('select * from rag.%s(%s)', name, arguments), code, null,
    format('%s refuses %s', name, arguments)
)
from unnest(array['search_chunks_plain', 'explain_search']) as name
cross join (values
    ('null, ''fake'', ''m'', 1024', 'RG001'), ('pg_temp.vec(1), ''no'', ''m'', 1024', 'RG003'),
    ('pg_temp.vec(1), ''fake'', ''m'', 768', 'RG004'),
    ('pg_temp.vec(1), ''fake'', ''m'', 1024, 21', 'RG001'),
    ('pg_temp.vec(1), ''fake'', ''m'', 1024, 5, ''{"a": 1}''', 'RG001')
) as u (arguments, code);
select results_eq(
    format('select * from rag.explain_search(%s)', arguments), format('values (%s)', expected), name
)
from (values
    (
        'pg_temp.vec(1), ''fake'', ''m'', 1024, 2',
        '''exact'', ''there is no approximate index'', 4::bigint, 4, 4, true, 2',
        'a search of few vectors compares all in full'
    ),
    (
        'pg_temp.vec(1), ''fake'', ''m'', 1024, 5, ''{"path_prefix": "two.md"}''',
        '''exact'', ''there is no approximate index'', 1::bigint, 1, 1, true, 1',
        'only what passes the filter is scanned'
    ),
    (
        'pg_temp.vec(0), ''fake'', ''m'', 1024',
        '''exact'', ''a zero vector is near to nothing'', 0::bigint, 0, 0, true, 0',
        'a zero question scans nothing'
    ),
    (
        'pg_temp.vec(1), ''fake'', ''m'', 1024, 5, ''{"path_prefix": "none"}''',
        '''exact'', ''there is no approximate index'', 0::bigint, 0, 0, true, 0',
        'a filter that nothing passes'
    )
) as u (arguments, expected, name);

-- similarity_score ---------------------------------------------------------------------------------

select is(rag.similarity_score('NaN'), 0::double precision, 'the NaN of a zero vector is no similarity');
select is(rag.similarity_score(null), null, 'no distance has no score');
select * from finish();
rollback;
