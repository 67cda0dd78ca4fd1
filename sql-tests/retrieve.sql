-- Tests of db/functions/retrieve.sql: one function for retrieval by vectors, by words and by both.

begin;
select plan(45);

create function pg_temp.vec(variadic p_first real[]) returns public.vector language sql immutable
as 'select (p_first || array_fill(0::real, array[1024 - cardinality(p_first)]))::public.vector';

create function pg_temp.store(
    p_source text, p_content text, p_vector public.vector, p_index integer default 0,
    p_heading text[] default '{}', p_metadata jsonb default '{}'
) returns void language sql as $$
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values ('/v', '/v/' || p_source, p_source, 'd')
    on conflict (vault_path, relative_path) do nothing;
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, heading_path, metadata,
        content_hash
    )
    select d.id, p_index, p_content, d.file_path, d.relative_path, p_heading, p_metadata, 'h'
    from rag.documents as d where d.relative_path = p_source;
    insert into rag.embeddings (
        chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
    )
    select c.id, u.provider, 'm', 1024, p_vector
    from rag.chunks as c, unnest(array['fake', 'real']) as u (provider)
    where c.relative_path = p_source and c.chunk_index = p_index and p_vector is not null;
$$;

-- retrieval_defaults, check_retrieval -------------------------------------------------------------

select results_eq(
    format('select * from rag.retrieval_defaults(%L)', p), format('values (%L, %s::float8)', r, w), p
)
from (values ('fake', 'lexical', 0.015), ('local-e5', 'hybrid', 0.5)) as u (p, r, w);
select is(rag.check_retrieval(r, v, p), c, format('%s of %s is %s', r, p, c))
from (values
    (null, null, null, 'lexical'), (null, pg_temp.vec(1), 'fake', 'lexical'),
    (null, pg_temp.vec(1), 'real', 'hybrid'), ('vector', pg_temp.vec(1), 'fake', 'vector'),
    ('lexical', null, 'real', 'lexical')
) as u (r, v, p, c);
select throws_ok(
    $$ select rag.check_retrieval('words', null, 'fake') $$, 'RG001',
    'retrieval must be vector, lexical or hybrid, got words', 'another retrieval is refused'
);
select throws_ok(
    format('select rag.check_retrieval(%L, null, %L)', r, 'fake'), 'RG001',
    'the vector of the question is null', format('%s needs a vector', r)
)
from unnest(array['vector', 'hybrid']) as u (r);

-- retrieve: what is refused -----------------------------------------------------------------------

select is_empty($$ select * from rag.retrieve('lag') $$, 'by words an empty index has nothing');
select throws_ok(
    $$ select * from rag.retrieve('lag', pg_temp.vec(1), 'fake', 'm') $$, 'RG003', null,
    'with a vector an empty index is not ready'
);

do $$ begin
    perform pg_temp.store('both.md', 'replication lag', pg_temp.vec(1));
    perform pg_temp.store('words.md', 'lag of replication, again lag', pg_temp.vec(0, 0, 1));
    perform pg_temp.store('near.md', 'something else', pg_temp.vec(1, 0.5));
    perform pg_temp.store('bare.md', 'lag', null);
end $$;
select throws_ok(format('select * from rag.retrieve(%s)', a), c, null, format('%s is refused', a))
from (values
    ('''lag'', p_top_k => 0', 'RG001'), ('''lag'', p_top_k => 21', 'RG001'),
    ('''lag'', p_filter => ''[]''', 'RG001'), ('''lag'', p_dim => 768', 'RG004'),
    ('''lag'', ''[1]'', ''fake'', ''m''', 'RG004'),
    ('''lag'', pg_temp.vec(1), ''no'', ''m''', 'RG003')
) as u (a, c);

-- retrieve: each way ------------------------------------------------------------------------------

select results_eq(
    format(
        'select r.chunk_id, r.vault_path, r.source, r.heading_path, r.chunk_index, r.content,
        r.content_hash, r.metadata, r.score from rag.retrieve(
        null, pg_temp.vec(%s), %L, %L, 1024, %s, p_retrieval => %L) as r', v, 'fake', 'm', k, 'vector'
    ),
    format(
        'select * from rag.search_chunks_plain(pg_temp.vec(%s), %L, %L, 1024, %s)', v, 'fake', 'm', k
    ), format('vector retrieval is the plain search: %s of (%s)', k, v)
)
from unnest(array['1', '0, 0, 1', '0']) as v cross join unnest(array[1, 20]) as k;
select results_eq(
    $$ select r.source, r.vector_rank, r.lexical_rank, r.matched_terms, r.scan
    from rag.retrieve('lag', pg_temp.vec(1), 'fake', 'm', p_retrieval => 'vector') as r $$,
    $$ values ('both.md', 1, null::integer, null::text[], 'exact'), ('near.md', 2, null, null, 'exact'),
    ('words.md', 3, null, null, 'exact') $$, 'vector retrieval reads no words'
);
select results_eq(
    $$ select r.source, r.score, r.vector_rank, r.lexical_rank
    from rag.retrieve('lag', pg_temp.vec(1), 'fake', 'm') as r $$,
    $$ values ('words.md', 0::float8, null::integer, 1), ('bare.md', 0, null, 2),
    ('both.md', 1, null, 3) $$, 'by words, each hit with its similarity: 0 where it has no vector'
);
select results_eq(
    $$ select r.source, r.score from rag.retrieve('lag') as r $$,
    $$ values ('words.md', null::float8), ('bare.md', null), ('both.md', null) $$,
    'without a vector there is no similarity'
);
select results_eq(
    $$ select r.source, r.vector_rank, r.lexical_rank, round(r.fused_score::numeric, 9)
    from rag.retrieve('lag', pg_temp.vec(1), 'real', 'm') as r $$,
    format(
        $$ values ('words.md', 3, 1, %1$s), ('both.md', 1, 3, %1$s), ('bare.md', null, 2, %2$s),
        ('near.md', 2, null, %2$s) $$, round(0.5 / 61 + 0.5 / 63, 9), round(0.5 / 62, 9)
    ), 'both lists are fused by rank, and where that ties the words decide'
);
select results_eq(
    $$ select r.source, round(r.fused_score::numeric, 9)
    from rag.retrieve('lag', pg_temp.vec(1), 'fake', 'm', p_retrieval => 'hybrid') as r limit 1 $$,
    format($$ values ('words.md', %s) $$, round(0.985 / 61 + 0.015 / 63, 9)),
    'the fake vectors weigh little'
);
select results_eq(
    $$ select r.source from rag.retrieve(
        'lag', pg_temp.vec(1), 'real', 'm', p_filter => '{"path_prefix": "near.md"}'
    ) as r $$, $$ values ('near.md') $$, 'a filter holds in both lists'
);
select results_eq(
    $$ select r.chunk_id, r.place from rag.rank_chunks(
        'lag', pg_temp.vec(1), 'real', 'm', 1024, 2, '{}', 'hybrid'
    ) as r order by r.place $$,
    $$ select r.chunk_id, row_number() over () from rag.retrieve(
        'lag', pg_temp.vec(1), 'real', 'm', p_top_k => 2
    ) as r $$, 'rank_chunks gives the places'
);

-- duplicate_of ------------------------------------------------------------------------------------

do $$
declare
    v_text text := (select string_agg('word' || i, ' ') from generate_series(1, 90) as i);
begin
    perform pg_temp.store('copy a.md', 'zebra ' || v_text, pg_temp.vec(1));
    perform pg_temp.store('copy b.md', 'zebra ' || v_text || ' more', pg_temp.vec(1));
    perform pg_temp.store('other.md', 'zebra stripes', pg_temp.vec(1));
    perform rag.fill_terms();
end $$;
select results_eq(
    $$ select r.source, o.relative_path
    from rag.retrieve('zebra', p_top_k => 3) as r
    left join rag.chunks as o on o.id = r.duplicate_of $$,
    $$ values ('other.md', null::text), ('copy a.md', null), ('copy b.md', 'copy a.md') $$,
    'a near copy names the hit that it repeats'
);
select is(
    (
        select count(r.duplicate_of) from rag.retrieve(
            'zebra', pg_temp.vec(1), 'fake', 'm', p_top_k => 20, p_retrieval => 'vector'
        ) as r
    ), 0::bigint, 'not in vector retrieval'
);

-- list_neighbours ---------------------------------------------------------------------------------

do $$ begin
    for i in 0..4 loop
        perform pg_temp.store(
            'long.md', 'part ' || i, null, i, case when i < 4 then '{A}' else '{B}' end::text[],
            jsonb_build_object('page', i / 3)
        );
    end loop;
end $$;
select results_eq(
    format(
        $$ select c.chunk_index, n.previous, n.next
        from rag.chunks as c
        join rag.list_neighbours(array(
            select x.id from rag.chunks as x
            where x.relative_path = 'long.md' and x.chunk_index = any(%L::integer[])
        )) as n on n.chunk_id = c.id order by 1 $$, i
    ), format('values %s', e), format('the neighbours of %s', i)
)
from (values
    ('{0}', '(0, null::text, ''part 1'')'), ('{1}', '(1, ''part 0'', ''part 2'')'),
    ('{2}', '(2, ''part 1'', null::text)'), ('{4}', '(4, null::text, null::text)'),
    ('{1,2}', '(1, ''part 0'', null::text), (2, null, null)')
) as u (i, e);

-- assert_retrieves: as whoever keeps a vault may write it down ------------------------------------

do $$ begin
    perform pg_temp.store('运维/重置密码.md', '如何重置数据库密码：用管理员登录。', null);
    perform pg_temp.store('运维/备份.md', '每天备份数据库。', null);
    perform pg_temp.store('errors.md', 'API-503 means that the server is overloaded.', null);
end $$;
select is(rag.assert_retrieves(q, p), 1, format('%s finds %s', q, p))
from (values
    ('重置密码', '运维/重置密码.md'), ('怎么备份数据库？', '运维/备份.md'), ('api-503', 'errors.md'),
    ('What does 503 mean?', 'errors.md')
) as u (q, p);
select is(rag.assert_retrieves('数据库', '运维/重置密码.md', 2), 2, 'the place is given');
select throws_ok(
    $$ select rag.assert_retrieves('备份', 'errors.md') $$, 'RG005',
    'errors.md is not among the best 5 for: 备份', 'what is not found is an error'
);
select throws_ok(
    $$ select rag.assert_retrieves('备份', 'errors.md', 0) $$, 'RG001', null, 'top_k is checked'
);

select * from finish();
rollback;
