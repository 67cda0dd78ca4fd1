-- Tests of db/functions/nearest.sql: the exact scan in two stages, its proof, the choice of a scan.
-- tests/test_exact_search.py compares it with the plain statement on many kinds of vectors.

begin;
select plan(45);

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

-- Half vectors ------------------------------------------------------------------------------------

do $$ begin
    perform pg_temp.store('v' || s, pg_temp.vec(s, s))
    from unnest(array[1, -3, 1e-13, 1e-12, 1e-11, 1e11, 1e12, 1e13, 0, 0.1]::real[]) as s;
end $$;
select is_empty(
    $$ select e.id, e.embedding_half, rag.half_vector(e.embedding) from rag.embeddings as e
    where e.embedding_half is distinct from rag.half_vector(e.embedding) $$,
    'half_vector gives what the table stores'
);
select is_empty(
    $$ select e.embedding_key from rag.embeddings as e
    where e.embedding_key <> rag.embedding_key('fake', 'm', 1024) $$,
    'embedding_key gives what the table stores'
);
select isnt(
    rag.embedding_key(p, m, d), rag.embedding_key('a', 'b', 1024),
    format('the key of %s, %s, %s is another', p, m, d)
)
from (values ('b', 'a', 1024), ('ab', '', 1024), ('a', 'B', 1024), ('a', 'b', 1023)) as u (p, m, d);
select is(
    (select count(*) from rag.embeddings as e where e.embedding_half is null), 4::bigint,
    'vectors of length 0, and those out of all proportion, have no half vector'
);
select is(
    round(vector_norm(rag.half_vector(pg_temp.vec(3, 4))::public.vector)::numeric, 3), 1.000,
    'a half vector has length one'
);
select cmp_ok(
    abs((rag.half_vector(u.a) <#> rag.half_vector(u.b)) + 1 - (u.a <=> u.b)), '<', rag.half_error(),
    'the half distance is no farther off than half_error'
)
from (
    select
        (
            select array_agg(sin(i * n) / (1 + (i * n) % 97))::public.vector
            from generate_series(1, 1024) as i
        ) as a,
        (
            select array_agg(cos(i * n * 3) ^ 3 + n * 0.1)::public.vector
            from generate_series(1, 1024) as i
        ) as b
    from generate_series(1, 10) as n
) as u;

-- find_nearest ------------------------------------------------------------------------------------

do $$ begin
    delete from rag.documents;
    -- 200 in a fan of angles that half precision cannot tell apart
    perform pg_temp.store('near.md', pg_temp.vec(1, (i * 1e-6)::real), '/v', i)
    from generate_series(1, 200) as i;
    perform pg_temp.store('far.md', pg_temp.vec(1, i), '/v', i) from generate_series(1, 100) as i;
    perform pg_temp.store('twin.md', pg_temp.vec(0, 0, 1), '/v', i) from generate_series(1, 50) as i;
    -- 60 without a half vector
    perform pg_temp.store('huge.md', pg_temp.vec(0, 0, 0, 1e15), '/v', i)
    from generate_series(1, 60) as i;
    perform pg_temp.store('normal.md', pg_temp.vec(0, 0, 0, 1, 0.1), '/v', 1);
end $$;
select results_eq(
    $$ select distinct n.scan, n.candidates, n.proven_at_once
    from rag.find_nearest(pg_temp.vec(1, 1e-4), 'fake', 'm', 1024, 5) as n
    where n.compared >= 200 $$,
    $$ values ('exact', 45, false) $$,
    'where the first candidates prove nothing, all within the error are compared'
);
select results_eq(
    $$ select distinct n.scan, n.candidates, n.compared, n.proven_at_once
    from rag.find_nearest(pg_temp.vec(1, 2), 'fake', 'm', 1024, 1) as n $$,
    $$ values ('exact', 33, 33, true) $$,
    'where the others are far enough, the first candidates are the proof'
);
select results_eq(
    $$ select n.chunk_id, n.scan
    from rag.find_nearest(pg_temp.vec(0), 'fake', 'm', 1024, 3) as n $$,
    $$ values (null::bigint, 'exact') $$, 'one row without a chunk for a zero question'
);
select results_eq(
    $$ select n.chunk_id from rag.find_nearest(
        pg_temp.vec(1), 'fake', 'm', 1024, 3, '{"path_prefix": "no"}'
    ) as n $$,
    $$ values (null::bigint) $$, 'one row without a chunk where nothing passes the filter'
);
create function pg_temp.nearest_by_path(p_query public.vector, p_top_k integer, p_filter jsonb)
returns text language sql as $$
    select string_agg(u.path || ' ' || u.chunks, ', ' order by u.path)
    from (
        select c.relative_path as path, count(*) as chunks
        from rag.find_nearest(p_query, 'fake', 'm', 1024, p_top_k, p_filter) as n
        join rag.chunks as c on c.id = n.chunk_id
        group by c.relative_path
    ) as u
$$;
select is(pg_temp.nearest_by_path(v, k, f), expected, name)
from (values
    (pg_temp.vec(0, 0, 1), 3, '{}'::jsonb, 'twin.md 50', 'all that tie with the last one come along'),
    (
        pg_temp.vec(0, 0, 1), 3, '{"vault": "/v"}', 'twin.md 50',
        'a vault is found by rows without a scope'
    ),
    (
        pg_temp.vec(0, 0, 0, 1), 20, '{}', 'huge.md 60',
        'vectors without a half vector are found like others'
    ),
    (
        pg_temp.vec(0, 0, 0, 1), 20, '{"path_prefix": "huge.md"}', 'huge.md 60',
        'and through a filter'
    ),
    (
        pg_temp.vec(0, 0, 0, 1), 1, '{"path_prefix": "normal.md"}', 'normal.md 1',
        'but not where the filter leaves them out'
    ),
    (
        pg_temp.vec(0, 0, 0, 1e20), 2, '{"path_prefix": "far.md"}',
        'far.md 100', 'a question out of all proportion is compared as the plain statement does'
    )
) as u (v, k, f, expected, name);

-- choose_scan, find_vector_index, without an index ------------------------------------------------

select results_eq(
    $$ select * from rag.choose_scan('fake', 'm', 1024, '{}') $$,
    $$ values ('exact', 'there is no approximate index') $$, 'without an index the scan is exact'
);
select is_empty($$ select * from rag.find_vector_index('fake', 'm', 1024) $$, 'there is none');

-- with one ----------------------------------------------------------------------------------------

do $$ begin
    execute format(
        'create index %I on rag.embeddings using hnsw (embedding_half public.halfvec_ip_ops)'
        ' where embedding_provider = ''fake'' and embedding_model = ''m'' and embedding_dim = 1024',
        rag.vector_index_name('fake', 'm', 1024)
    );
end $$;
select results_eq(
    $$ select i.is_valid, i.indexed_rows between 351 and 357
    from rag.find_vector_index('fake', 'm', 1024) as i $$,
    $$ values (true, true) $$, 'an index is found by its name; rows without half are not in it'
);
select is_empty(
    $$ select * from rag.find_vector_index('fake', 'm2', 1024) $$,
    'the index of one configuration is not that of another'
);
select results_eq(
    $$ select c.scan, c.reason ~ '^about 35. vectors pass$'
    from rag.choose_scan('fake', 'm', 1024, '{}') as c $$,
    $$ values ('exact', true) $$, 'few vectors are compared exactly all the same'
);
update pg_class set reltuples = 20000
where oid = ('rag.' || rag.vector_index_name('fake', 'm', 1024))::regclass;
select is(
    (select c.scan from rag.choose_scan('fake', 'm', 1024, f::jsonb) as c), scan,
    format('with 20000 vectors and the filter %s', f)
)
from (values
    ('{}', 'index'), ('{"vault": "/v"}', 'index'), ('{"vault": "/w"}', 'exact'),
    ('{"path_prefix": "none"}', 'exact')
) as u (f, scan);
select results_eq(
    $$ select distinct n.scan, n.candidates, n.proven_at_once
    from rag.find_nearest(pg_temp.vec(-1, 100), 'fake', 'm', 1024, 5) as n $$,
    $$ values ('index', 15, null::boolean) $$, 'an index gives candidates and proves nothing'
);
select results_eq(
    $$ select s.source, s.chunk_index, s.scan
    from rag.retrieve(
        null, pg_temp.vec(1, 1.5), 'fake', 'm', 1024, 3, p_retrieval => 'vector'
    ) as s $$,
    $$ values ('far.md', 2, 'index'), ('far.md', 1, 'index'), ('far.md', 3, 'index') $$,
    'a search by the index finds what is nearest'
);
select is(
    pg_temp.nearest_by_path(pg_temp.vec(0, 0, 0, 1), 20, '{}'), 'huge.md 60',
    'rows without a half vector are compared beside what the index finds'
);
select results_eq(
    $$ select distinct n.scan, n.reason ~ '^the approximate index found [01] of 5$'
    from rag.find_nearest(
        pg_temp.vec(1), 'fake', 'm', 1024, 5, '{"path_prefix": "normal.md"}', 'index'
    ) as n $$,
    $$ values ('exact', true) $$,
    'an index that finds too few is followed by an exact scan'
);
select is(current_setting('hnsw.iterative_scan'), 'off', 'the settings of the session stay');
update pg_index set indisvalid = false
where indexrelid = ('rag.' || rag.vector_index_name('fake', 'm', 1024))::regclass;
select results_eq(
    $$ select * from rag.choose_scan('fake', 'm', 1024, '{}') $$,
    $$ values ('exact', 'the approximate index is not complete') $$,
    'an index that is not complete does not serve'
);

-- compare_embeddings ------------------------------------------------------------------------------

select results_eq(
    format(
        $$ select count(*) from rag.compare_embeddings(
            array(select e.id from rag.embeddings as e join rag.chunks as c on c.id = e.chunk_id
                where c.relative_path = 'twin.md'),
            pg_temp.vec(0, 0, 1), %L, 'm', 1024, '{"path_prefix": "none"}'
        ) $$, p
    ),
    format('values (%s::bigint)', n), format('what %s embedded: %s', p, n)
)
from (values ('fake', 50), ('other', 0)) as u (p, n);

select * from finish();
rollback;
