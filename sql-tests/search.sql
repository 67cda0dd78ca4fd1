-- Tests of db/functions/search.sql: nearest vectors, the search, the decision to answer.

begin;
select plan(175);

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

-- check_filter ------------------------------------------------------------------------------------

select is(rag.check_filter('{}'), '{}'::jsonb, 'an empty filter is allowed');
select throws_ok(
    format('select rag.check_filter(%s)', f), 'RG001', m, format('filter %s is refused', f)
)
from (values
    ('''{"folder": "x"}''', 'filter has an unknown key: folder'),
    ('''{"z": 1, "a": 2}''', 'filter has an unknown key: a'),
    ('''[]''', 'filter must be a JSON object, got []'),
    ('''"x"''', 'filter must be a JSON object, got "x"'),
    ('null', 'filter must be a JSON object, got null')
) as u (f, m);

select is(rag.check_filter(f::jsonb), f::jsonb, format('filter %s is allowed', f))
from unnest(array[
    '{"vault": "/srv/notes"}', '{"path_prefix": "a_b/"}', '{"path_prefix": "%"}',
    '{"tags": {"any": ["p1", "#ops/db"]}}', '{"tags": {"all": ["p1"], "any": ["p2"]}}',
    '{"updated_after": "2026-01-31T00:00:00Z"}', '{"updated_after": "2026-01-31 00:00+08"}',
    '{"updated_after": "2026-01-31T00:00:00.123456-0530"}',
    '{"vault": "/v", "path_prefix": "a", "tags": {"any": ["x"]}}'
]) as u (f);
select throws_ok(
    format('select rag.check_filter(%L)', format('{"%s": %s}', k, v)), 'RG001',
    format('filter.%s must be a text that is not empty, got %s', k, v),
    format('%s %s is refused', k, v)
)
from unnest(array['vault', 'path_prefix', 'updated_after']) as u (k)
cross join unnest(array['5', 'null', 'true', '["a"]', '{}', '""', '" "', '"/"', '" // "']) as w (v);
select throws_ok(
    format('select rag.check_filter(%L)', format('{"tags": %s}', v)), 'RG001',
    'filter.tags must hold a list of tags under any or all, got ' || v,
    format('tags %s are refused', v)
)
from unnest(array[
    '5', 'null', '"p1"', '["p1"]', '{}', '{"any": []}', '{"any": "p1"}', '{"any": null}',
    '{"any": {"a": 1}}', '{"any": [5]}', '{"any": [null]}', '{"any": [["p1"]]}', '{"any": [""]}',
    '{"any": ["#"]}', '{"all": ["p1", " #/ "]}', '{"none": ["p1"]}'
]) as u (v);
select throws_ok(
    format('select rag.check_filter(%L)', jsonb_build_object('updated_after', v)), 'RG001',
    format('filter.updated_after must be a time with a zone, got "%s"', v),
    format('updated_after %s is refused', v)
)
from unnest(array[
    '2026-01-31', '2026-01-31T00:00:00', 'today', 'infinity', '1767225600', 'now',
    '2026-01-31T00:00:00 Europe/Berlin', ' 2026-01-31T00:00:00Z', '20260131T000000Z'
]) as u (v);
select throws_ok(
    format('select rag.check_filter(%L)', jsonb_build_object('updated_after', v)), '22008', null,
    format('the time %s does not exist', v)
)
from unnest(array['2026-02-30T00:00:00Z', '2026-13-01T00:00:00Z', '2026-01-31T25:00:00Z']) as u (v);

-- filter_tags -------------------------------------------------------------------------------------

select is(rag.filter_tags(f::jsonb, w), r::text[], format('tags of %s under %s', f, w))
from (values
    ('{}', 'any', null),
    ('{"tags": {"all": ["a"]}}', 'any', null),
    ('{"tags": {"all": ["a"]}}', 'all', '{a}'),
    ('{"tags": {"any": ["#a", "b/", " c ", "#d/e/", "f g", "f#"]}}', 'any', '{a,b,c,d/e,f g,f}')
) as u (f, w, r);

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
    (select p.prosrc from pg_proc as p where p.oid = 'rag.search_chunks'::regproc),
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

-- nearest_embeddings ------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.store('one.md', pg_temp.vec(1));
    perform pg_temp.store('two.md', pg_temp.vec(0, 1));
    perform pg_temp.store('two again.md', pg_temp.vec(0, 1));
    perform pg_temp.store('three.md', pg_temp.vec(-1));
end $$;
select results_eq(
    $$ select n.distance from rag.nearest_embeddings(pg_temp.vec(1), 'fake', 'm', 1024, 2) as n $$,
    'values (0::float8), (1), (1)', 'all that tie with the last one come along'
);
select is_empty(
    $$ select * from rag.nearest_embeddings(pg_temp.vec(1), 'fake', 'm', 3, 2) $$,
    'another dimension has no vectors'
);

-- Filters -----------------------------------------------------------------------------------------

do $$ begin
    delete from rag.documents;
    perform pg_temp.store('a_b/one.md', pg_temp.vec(1), '/v');
    perform pg_temp.store('a_b.md', pg_temp.vec(1, 0.1), '/v');
    perform pg_temp.store('axb/two.md', pg_temp.vec(1, 0.2), '/v');
    perform pg_temp.store('a_bc/three.md', pg_temp.vec(1, 0.3), '/v');
    perform pg_temp.store('100%/four.md', pg_temp.vec(1, 0.4), '/v');
    perform pg_temp.store('100x/five.md', pg_temp.vec(1, 0.5), '/v');
    perform pg_temp.store(E'b\\s/six.md', pg_temp.vec(1, 0.6), '/v');
    perform pg_temp.store('a_b/one.md', pg_temp.vec(1, 0.7), '/w');
    perform pg_temp.store(normalize('café/x.md', nfc), pg_temp.vec(1, 0.8), '/w');
    update rag.chunks as c set tags = u.tags
    from (values
        ('axb/two.md', array['ops/db', 'P1']), ('a_bc/three.md', array['ops', 'p10']),
        ('100%/four.md', array['Über', 'p1/x'])
    ) as u (path, tags)
    where c.relative_path = u.path;
    update rag.documents as d set updated_at = '2020-05-01T10:00:00Z'
    where d.relative_path = 'axb/two.md';
    update rag.documents as d set updated_at = '2020-05-02T10:00:00Z' where d.vault_path = '/w';
end $$;
create function pg_temp.passing(p_filter jsonb) returns text[] language sql as $$
    select coalesce(array_agg(s.vault_path || ':' || s.source order by s.score desc), '{}')
    from rag.search_chunks(pg_temp.vec(1), 'fake', 'm', 1024, 20, p_filter) as s
$$;
select is(
    pg_temp.passing(jsonb_build_object('path_prefix', p)), r::text[], format('path_prefix %s', p)
)
from (values
    ('a_b', '{/v:a_b/one.md,/w:a_b/one.md}'), ('a_b/', '{/v:a_b/one.md,/w:a_b/one.md}'),
    ('a_b/one.md', '{/v:a_b/one.md,/w:a_b/one.md}'), ('a_b.md', '{/v:a_b.md}'), ('a_', '{}'),
    ('A_B', '{}'), ('100%', '{/v:100%/four.md}'), ('%', '{}'), (E'b\\s', E'{"/v:b\\\\s/six.md"}'),
    (E'cafe\u0301', '{"/w:café/x.md"}')
) as u (p, r);
select is(pg_temp.passing(jsonb_build_object('tags', f::jsonb)), r::text[], format('tags %s', f))
from (values
    ('{"any": ["p1"]}', '{/v:axb/two.md,/v:100%/four.md}'),
    ('{"any": ["#P1/"]}', '{/v:axb/two.md,/v:100%/four.md}'),
    ('{"any": ["ops"]}', '{/v:axb/two.md,/v:a_bc/three.md}'),
    ('{"any": ["ops/db"]}', '{/v:axb/two.md}'),
    ('{"any": ["OPS/DB", "p10"]}', '{/v:axb/two.md,/v:a_bc/three.md}'), ('{"any": ["op"]}', '{}'),
    ('{"all": ["ops", "p1"]}', '{/v:axb/two.md}'), ('{"all": ["p1", "p10"]}', '{}'),
    ('{"any": ["p10"], "all": ["ops"]}', '{/v:a_bc/three.md}'),
    ('{"any": ["üBER"]}', '{/v:100%/four.md}'),
    ('{"any": ["%"]}', '{}')
) as u (f, r);
select is(
    pg_temp.passing('{"vault": "/w"}'), '{/w:a_b/one.md,"/w:café/x.md"}'::text[],
    'a vault is a condition'
);
select is(pg_temp.passing(f::jsonb), '{}', format('nothing passes %s', f))
from unnest(array[
    '{"vault": "/v/a_b"}', '{"vault": "/V"}',
    '{"vault": "/w", "path_prefix": "axb"}',
    '{"updated_after": "2999-01-01T00:00:00Z"}'
]) as u (f);
select is(
    cardinality(pg_temp.passing(jsonb_build_object('updated_after', a))), n,
    format('%s chunks changed after %s', n, a)
)
from (values
    ('2020-05-01T09:59:59Z', 9), ('2020-05-01T10:00:00Z', 8), ('2020-05-01T12:00:00+02', 8),
    ('2020-05-02T10:00:00Z', 6)
) as u (a, n);
select throws_ok(
    $$ select pg_temp.passing('{"updated_after": "2026-02-30T00:00:00Z"}') $$, '22008', null,
    'a time that does not exist is an error of the search too'
);

do $$ begin
    for i in 1..50 loop
        perform pg_temp.store('A.md', pg_temp.vec(1, i * 0.001), '/v', i, '{}', 'limit');
    end loop;
    for i in 1..5 loop
        perform pg_temp.store('B.md', pg_temp.vec(0.5, 0.5 + i * 0.01), '/v', i, '{}', 'limit');
    end loop;
end $$;
select results_eq(
    format(
        $$ select s.source, s.chunk_index
        from rag.search_chunks(pg_temp.vec(1), 'limit', 'm', 1024, %s, '{"path_prefix": "B.md"}') as s $$,
        k
    ),
    format($$ select 'B.md'::text, i from generate_series(1, %s) as u (i) $$, least(k, 5)),
    format('the filter is applied before the limit of %s', k)
)
from unnest(array[3, 10]) as u (k);
do $$ begin
    perform pg_temp.store('B.md', pg_temp.vec(0), '/v', 9, '{}', 'limit');
end $$;
select is(
    (
        select array_agg(s.chunk_index)
        from rag.search_chunks(
            pg_temp.vec(1), 'limit', 'm', 1024, 10, '{"path_prefix": "B.md"}'
        ) as s
    ), array[1, 2, 3, 4, 5], 'a zero vector is not found by a filter either'
);
select is(
    (
        select count(*)
        from rag.search_chunks(
            pg_temp.vec(0), 'limit', 'm', 1024, 10, '{"path_prefix": "B.md"}'
        ) as s
    ), 0::bigint, 'nor does a zero question find anything through a filter'
);
select results_eq(
    $$ select n.distance
    from rag.nearest_filtered_embeddings(pg_temp.vec(1), 'fake', 'm', 1024, 9) as n $$,
    $$ select n.distance from rag.nearest_embeddings(pg_temp.vec(1), 'fake', 'm', 1024, 9) as n $$,
    'without conditions both scans give the same'
);

-- decide_mode -------------------------------------------------------------------------------------

select is((select d.mode from rag.decide_mode(c, t, f, e) as d), mode, name)
from (values
    (0.31, 0.20, false, false, 'rag', 'a confidence above the threshold is answered'),
    (0.20, 0.20, false, false, 'rag', 'a confidence exactly at the threshold is answered'),
    (0.20, 0.20, true, true, 'rag', 'an answer from the knowledge base goes before fallback'),
    (0.1999999999, 0.20, false, false, 'no_answer', 'just below the threshold is no answer'),
    (0.1, 0.35, true, true, 'fallback', 'fallback needs the request and the setting'),
    (0.1, 0.35, true, false, 'no_answer', 'a fallback that is not enabled is no answer'),
    (0.1, 0.35, false, true, 'no_answer', 'a fallback that nobody asked for is no answer'),
    (0, 0, false, false, 'rag', 'a threshold of 0 answers everything'),
    (null, 0.2, false, false, 'no_answer', 'no confidence is no answer')
) as u (c, t, f, e, mode, name);
select matches((select d.reason from rag.decide_mode(c, t, f, e) as d), pattern, name)
from (values
    (0.31, 0.2, false, false, '0\.310000 is not below .* 0\.200000$', 'the reason gives both numbers'),
    (0.1, 0.35, false, true, '0\.100000 is below .* 0\.350000$', 'the reason says what was too low'),
    (0.1, 0.35, true, false, 'disabled globally$', 'the reason says that fallback is disabled'),
    (0.1, 0.35, true, true, 'fallback .* enabled$', 'the reason says why it is a fallback')
) as u (c, t, f, e, pattern, name);
select is(
    (select d.mode from rag.decide_mode(0.1, 0.2) as d), 'no_answer', 'fallback is off by default'
);

select is(rag.similarity_score('NaN'), 0::double precision, 'the NaN of a zero vector is no similarity');
select is(rag.similarity_score(null), null, 'no distance has no score');
select results_eq(
    $$select d.mode, d.reason from rag.decide_mode('NaN', 0.2) as d$$,
    $$values ('no_answer', 'nothing was found')$$,
    'NaN is no confidence'
);
select results_eq(
    $$select d.mode from rag.decide_mode(null, 0.0) as d$$,
    $$values ('no_answer')$$,
    'nothing found is refused whatever the threshold'
);

select * from finish();
rollback;
