-- Tests of db/functions/filter.sql: what is allowed in a filter, and what passes it.

begin;
select plan(115);

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

-- filter_path -------------------------------------------------------------------------------------

select is(rag.filter_path(jsonb_build_object('path_prefix', p)), r, format('the path %s', p))
from (values
    ('a', 'a'), ('./a/', 'a'), ('/a/b//', 'a/b'), ('././a b', 'a b'), (E'cafe\u0301', 'café'),
    (null, null)
) as u (p, r);

-- filtered_chunks, by a search --------------------------------------------------------------------

do $$ begin
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
select * from finish();
rollback;
