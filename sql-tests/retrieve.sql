-- Tests of db/functions/retrieve.sql: one function for retrieval by vectors, by words and by both.

begin;
select plan(154);

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
from (values
    ('fake', 'lexical', 0.015), ('local-e5', 'hybrid', 0.5), (null, 'hybrid', 0.5)
) as u (p, r, w);
select is(rag.check_retrieval(r, v, p), c, format('%s of %s is %s', r, p, c))
from (values
    (null, null, null, 'lexical'), (null, pg_temp.vec(1), 'fake', 'lexical'),
    (null, pg_temp.vec(1), 'real', 'hybrid'), ('vector', pg_temp.vec(1), 'fake', 'vector'),
    ('lexical', null, 'real', 'lexical'), ('lexical', pg_temp.vec(1), 'real', 'lexical'),
    (null, null, 'real', 'lexical'), ('hybrid', pg_temp.vec(1), 'fake', 'hybrid')
) as u (r, v, p, c);
select throws_ok(
    format('select rag.check_retrieval(%L, null, %L)', r, 'fake'), 'RG001',
    'retrieval must be vector, lexical or hybrid, got ' || r, format('retrieval %L is refused', r)
)
from unnest(array['words', '', 'Hybrid', 'vector ']) as u (r);
select throws_ok(
    format('select rag.check_retrieval(%L, null, %L)', r, 'fake'), 'RG001',
    'the vector of the question is null', format('%s needs a vector', r)
)
from unnest(array['vector', 'hybrid']) as u (r);

-- is_wordless -------------------------------------------------------------------------------------

select is(rag.is_wordless(q), w, format('%L is wordless: %s', q, w))
from (values ('？？？', true), ('', true), ('猫', true), ('猫？狗', true), ('猫狗', false), ('lag', false))
    as u (q, w);

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
    ('''lag'', pg_temp.vec(1), ''no'', ''m''', 'RG003'),
    ('''lag'', pg_temp.vec(1), ''no'', ''m'', p_retrieval => ''lexical''', 'RG003'),
    ('''lag'', pg_temp.vec(1)', 'RG003'), ('''lag'', p_top_k => null', 'RG001'),
    ('''lag'', p_filter => null', 'RG001'), ('''lag'', p_filter => ''{"a": 1}''', 'RG001'),
    ('''lag'', p_dim => null', 'RG004'), ('''lag'', p_retrieval => ''hybrid''', 'RG001'),
    ('''lag'', p_retrieval => ''vector''', 'RG001'), ('''lag'', p_retrieval => ''words''', 'RG001')
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
    format(
        $$ select r.chunk_id, r.vault_path, r.source, r.heading_path, r.chunk_index, r.content,
        r.content_hash, r.metadata, r.score
        from rag.retrieve('lag', pg_temp.vec(1, 1), 'real', 'm', 1024, 3, %L, 'vector') as r $$, f
    ), format($$ select * from rag.%s(pg_temp.vec(1, 1), 'real', 'm', 1024, 3, %L) $$, s, f),
    format('vector retrieval is rag.%s, with the filter %s', s, f)
)
from unnest(array['search_chunks', 'search_chunks_plain']) as s
cross join unnest(array['{}', '{"path_prefix": "near.md"}', '{"vault": "/none"}']) as f;
select is_empty(
    $$ select r.fused_score from rag.retrieve(
        'lag', pg_temp.vec(1, 1), 'real', 'm', p_retrieval => 'vector'
    ) as r where r.fused_score <> 1 / (60 + r.vector_rank)::float8
    or num_nonnulls(r.lexical_rank, r.lexical_score, r.coverage, r.duplicate_of) > 0 $$,
    'vector retrieval fuses nothing'
);
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
    $$ select r.chunk_id, r.lexical_rank::bigint, r.lexical_score, r.coverage, r.matched_terms
    from rag.retrieve('again the replication lag', p_filter => '{"vault": "/v"}') as r $$,
    $$ select * from rag.find_lexical('again the replication lag', 5, '{"vault": "/v"}') $$,
    'lexical retrieval is rag.find_lexical'
);
select is_empty(
    format('select * from rag.retrieve(%L)', q), format('by words nothing is found for %L', q)
)
from unnest(array['', '？', 'zebra']) as u (q);
select is_empty(
    $$ select * from rag.retrieve('lag', p_filter => '{"path_prefix": "near.md"}') $$,
    'a filter holds for the words alone'
);
select results_eq(
    format(
        $$ select r.source, r.vector_rank, r.lexical_rank
        from rag.retrieve(%L, pg_temp.vec(1), 'real', 'm', p_retrieval => 'hybrid') as r $$, q
    ), $$ values ('both.md', 1, null::integer), ('near.md', 2, null), ('words.md', 3, null) $$,
    format('where no words are found the vectors alone decide: %L', q)
)
from unnest(array['zebra', '？']) as u (q);
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
select is_empty(
    format(
        $$ select r.source, r.fused_score
        from rag.retrieve('lag of else', pg_temp.vec(1, 1), %L, 'm', p_retrieval => 'hybrid') as r
        where abs(
            r.fused_score - coalesce(%s / (60.0 + r.vector_rank), 0)
            - coalesce(%s / (60.0 + r.lexical_rank), 0)
        ) > 1e-12 or num_nonnulls(r.vector_rank, r.lexical_rank) = 0 $$, p, w, 1 - w
    ), format('the score of each hit is the formula: %s', p)
)
from (values ('fake', 0.015), ('real', 0.5)) as u (p, w);
select results_eq(
    $$ select r.source from rag.retrieve('lag', pg_temp.vec(1), 'real', 'm', p_top_k => 3) as r $$,
    $$ select r.source from rag.retrieve('lag', pg_temp.vec(1), 'real', 'm') as r limit 3 $$,
    'fewer hits are the first of more'
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

select throws_ok(
    format($$ select * from rag.retrieve(null, %s, 'real', 'm', p_retrieval => %L) $$, v, r), 'RG001',
    'the question is null', format('retrieval %s needs a question', r)
)
from (values ('null', null), ('pg_temp.vec(1)', 'lexical'), ('pg_temp.vec(1)', 'hybrid')) as u (v, r);

-- the signals and the confidence, whatever is asked for ------------------------------------------

-- the vector is that of near.md, which has none of the words; rows of the list: similarity, coverage,
-- whether the confidence is the similarity
select results_eq(
    format(
        $$ select distinct
            round(r.best_similarity::numeric, 6), round(r.best_coverage::numeric, 6), r.cjk_share,
            coalesce(r.calibration, 'none'), r.confidence = r.best_similarity,
            r.confidence = (
                select e.confidence
                from rag.estimate_confidence(
                    r.best_similarity, r.best_coverage, r.cjk_share, %2$L, 'm', %4$L
                ) as e
            )
        from rag.retrieve('lag', pg_temp.vec(1, 0.5), %2$L, 'm', 1024, %3$s, '{}', %4$L) as r $$,
        null, p, k, r
    ),
    format(
        'values (%s::numeric, %L::numeric, 0::float8, %L, %L::boolean, true)',
        c, case when r <> 'vector' then (
            select round(max(f.coverage)::numeric, 6) from rag.find_lexical('lag', 20) as f
        ) end, calibration, calibration = 'none'
    ),
    format('confidence of the best %s: %s %s', k, p, r)
)
from (values
    -- by words both.md is the most similar that is found
    ('fake', 'lexical', round(1 / sqrt(1.25), 6), 'shipped'),
    ('real', 'lexical', round(1 / sqrt(1.25), 6), 'shipped'),
    ('fake', 'vector', 1, 'none'), ('fake', 'hybrid', 1, 'none'), ('real', 'hybrid', 1, 'none')
) as u (p, r, c, calibration)
cross join unnest(array[1, 2, 20]) as k;
select is_empty(
    $$ select * from rag.retrieve('lag') as r
    where r.best_similarity is not null or r.calibration <> 'shipped' or (r.confidence > 0.9) is not true $$,
    'without a vector words alone give a confidence'
);
select results_eq(
    format(
        $$ select distinct r.best_coverage, r.calibration, r.confidence = r.best_similarity
        from rag.retrieve(%L, pg_temp.vec(1, 0.5), 'real', 'm', p_retrieval => %L) as r $$, q, r
    ),
    $$ values (null::float8, null::text, true) $$,
    format('without words confidence is the similarity: %s, %s', q, r)
)
from (values ('税', 'lexical'), ('税', 'hybrid'), ('？', 'lexical'), ('🙂', 'hybrid')) as u (q, r);

-- A single character: words are kept as pairs of them ---------------------------------------------

do $$ begin
    perform pg_temp.store('cats.md', '小猫在睡觉', pg_temp.vec(0, 0, 0, 1));
    perform pg_temp.store('dogs.md', '狗', pg_temp.vec(0, 0, 0, 0, 1));
end $$;
select results_eq(
    $$ select r.source, r.vector_rank, r.lexical_rank from rag.retrieve(
        '猫', pg_temp.vec(0, 0, 0, 1), 'fake', 'm', 1024, 1
    ) as r $$, $$ values ('cats.md', 1, null::integer) $$,
    'a question of one character is searched by vectors too'
);
select is_empty($$ select * from rag.retrieve('猫') $$, 'without a vector it cannot be');
select results_eq(
    $$ select r.source, r.vector_rank, r.lexical_rank from rag.retrieve(
        '睡觉', pg_temp.vec(1), 'fake', 'm'
    ) as r $$, $$ values ('cats.md', null::integer, 1) $$, 'one of two is searched by words alone'
);
select is(rag.assert_retrieves('狗', 'dogs.md'), 1, 'a character that stands alone is a word');
delete from rag.documents as d where d.relative_path in ('cats.md', 'dogs.md');

-- Beyond the best fifty of a list -----------------------------------------------------------------

-- chunk i of 60 is the i-th by words and the (61 - i)-th by vectors
do $$ begin
    for i in 1..60 loop
        perform pg_temp.store('deep.md', 'gnu' || repeat(' x', 20 * i), pg_temp.vec(10, i), i);
    end loop;
end $$;
create function pg_temp.deep(p_provider text, p_top_k integer) returns setof text language sql as $$
    select concat_ws(
        ' ', r.chunk_index, coalesce(r.vector_rank::text, '-'), coalesce(r.lexical_rank::text, '-')
    )
    from rag.retrieve(
        'gnu', pg_temp.vec(0, 1), p_provider, 'm', 1024, p_top_k, '{"path_prefix": "deep.md"}', 'hybrid'
    ) as r
$$;
select results_eq(
    format('select * from pg_temp.deep(%L, %s)', p, cardinality(w)), w,
    format('fifty of each list are fused: %s', p)
)
from (values
    -- 0.985 / (60 + i) falls; the vectors, where among the best fifty, add 0.015 / (121 - i)
    ('fake', array[
        '1 - 1', '2 - 2', '3 - 3', '4 - 4', '5 - 5', '6 - 6', '7 - 7', '8 - 8', '9 - 9', '10 - 10',
        '11 50 11', '12 49 12', '13 48 13'
    ]),
    -- 0.5 / (60 + i) + 0.5 / (121 - i) is the same for i and 61 - i, and highest at the ends
    ('real', array['11 50 11', '50 11 50', '12 49 12', '49 12 49', '13 48 13'])
) as u (p, w);
select results_eq(
    $$ select r.vector_rank, round(r.score::numeric, 6) from rag.retrieve(
        'gnu', pg_temp.vec(0, 1), 'fake', 'm', 1024, 1, '{"path_prefix": "deep.md"}', 'hybrid'
    ) as r $$,
    format('values (null::integer, %s)', round(1 / sqrt(101.0), 6)),
    'a chunk that the vectors did not find has its similarity all the same'
);
delete from rag.documents as d where d.relative_path = 'deep.md';

-- duplicate_of ------------------------------------------------------------------------------------

do $$
declare
    v_text text := (select string_agg('word' || i, ' ') from generate_series(1, 90) as i);
begin
    perform pg_temp.store('copy a.md', 'zebra ' || v_text, pg_temp.vec(1));
    perform pg_temp.store('copy b.md', 'zebra ' || v_text || ' more', pg_temp.vec(1));
    perform pg_temp.store('other.md', 'zebra stripes', pg_temp.vec(1));
    perform pg_temp.store('copy c.md', 'zebra zebra ' || v_text, pg_temp.vec(1));
    perform pg_temp.store('half.md', 'zebra ' || left(v_text, 310), pg_temp.vec(1));
    perform rag.fill_terms();
end $$;
select results_eq(
    $$ select r.source, o.relative_path
    from rag.retrieve('zebra') as r
    left join rag.chunks as o on o.id = r.duplicate_of $$,
    -- of 96, 5, 50, 95 and 96 terms: the steps are 12, 11, 10, 9 and 9
    $$ values ('copy c.md', null::text), ('other.md', null), ('half.md', null),
    ('copy a.md', 'copy c.md'), ('copy b.md', 'copy c.md') $$,
    'a near copy names the first hit that it repeats'
);
select results_eq(
    $$ select one.relative_path, other.relative_path
    from rag.list_duplicates(array(
        select c.id from rag.chunks as c
        where c.relative_path in ('copy a.md', 'copy b.md', 'other.md') order by c.relative_path desc
    )) as u
    join rag.chunks as one on one.id = u.chunk_id
    join rag.chunks as other on other.id = u.duplicate_of $$,
    $$ values ('copy a.md', 'copy b.md') $$, 'the later one in a list is the duplicate'
);
do $$ begin
    perform pg_temp.store('staging.md', 'The pool of giraffes has 20 places, as we said', null);
    perform pg_temp.store('production.md', 'The pool of giraffes has 400 places, as we said', null);
end $$;
select is(
    (select count(r.duplicate_of) from rag.retrieve('giraffes pool') as r), 0::bigint,
    'chunks that differ in a number are no copies of each other'
);
delete from rag.documents as d where d.relative_path in ('staging.md', 'production.md');
select results_eq(
    $$ select r.source, o.relative_path
    from rag.retrieve('zebra', p_filter => '{"path_prefix": "copy b.md"}') as r
    left join rag.chunks as o on o.id = r.duplicate_of $$,
    $$ values ('copy b.md', null::text) $$, 'not one that the filter holds back'
);
select is(
    (
        select count(r.duplicate_of) from rag.retrieve(
            'zebra', pg_temp.vec(1), 'real', 'm', p_top_k => 20, p_retrieval => 'hybrid'
        ) as r
    ), 2::bigint, 'in hybrid retrieval too'
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
    ('{1,2}', '(1, ''part 0'', null::text), (2, null, null)'),
    ('{0,2}', '(0, null::text, ''part 1''), (2, ''part 1'', null)'),
    ('{3}', '(3, null::text, null::text)')
) as u (i, e);
select is_empty(
    format('select * from rag.list_neighbours(%L)', i), format('%L has no neighbours', i)
)
from unnest(array['{}', '{0,-1}', null]) as u (i);

select is_empty(
    $$ select n.chunk_id from rag.list_neighbours(array(
        select c.id from rag.chunks as c where c.relative_path = 'long.md'
    )) as n where num_nonnulls(n.previous_id, n.next_id, n.previous, n.next) > 0 $$,
    'chunks that are all there are no neighbours'
);
select results_eq(
    $$ select p.chunk_index, p.content = n.previous, x.chunk_index, x.content = n.next
    from rag.list_neighbours(array(
        select c.id from rag.chunks as c where c.relative_path = 'long.md' and c.chunk_index = 1
    )) as n
    join rag.chunks as p on p.id = n.previous_id
    join rag.chunks as x on x.id = n.next_id $$,
    'values (0, true, 2, true)', 'neighbours are told by their id as well'
);

-- assert_retrieves: as whoever keeps a vault may write it down ------------------------------------

do $$ begin
    perform pg_temp.store('运维/重置密码.md', '如何重置数据库密码：用管理员登录。', null);
    perform pg_temp.store('运维/备份.md', '每天备份数据库。', null);
    perform pg_temp.store('errors.md', 'API-503 means that the server is overloaded.', null);
    perform pg_temp.store('release.md', 'Since v8.5.1 set tidb_mem_quota_query, 1 GB.', null);
    perform pg_temp.store('code.md', 'Written in C++ and C#, by Σίσυφος in École Жук, İzmir.', null);
    perform pg_temp.store('backup.md', 'How backups are restored', null, 0, '{Restoring}');
    perform pg_temp.store('ja.md', 'ﾊﾝｶｸのカタカナ', null);
    perform pg_temp.store('ko.md', normalize('한국어 문서', nfd), null);
    perform pg_temp.store('numa.md', '副本', null, 0, '{集群,扩容}');
end $$;
select is(rag.assert_retrieves(q, p), 1, format('%s finds %s', q, p))
from (values
    ('重置密码', '运维/重置密码.md'), ('怎么备份数据库？', '运维/备份.md'), ('api-503', 'errors.md'),
    ('What does 503 mean?', 'errors.md'), ('ＡＰＩ－５０３', 'errors.md'), ('v8.5.1', 'release.md'),
    ('what is the memory quota: tidb_mem_quota_query?', 'release.md'), ('mem quota', 'release.md'),
    ('TIDB_MEM_QUOTA_QUERY是什么', 'release.md'), ('c++', 'code.md'), ('C# 吗', 'code.md'),
    ('ΣΊΣΥΦΟΣ', 'code.md'), ('ÉCOLE', 'code.md'), ('ЖУК', 'code.md'), ('izmir', 'code.md'),
    ('restore a backup', 'backup.md'), ('ハンカク', 'ja.md'), ('한국어', 'ko.md'), ('如何扩容集群？', 'numa.md'),
    ('numa', 'numa.md')
) as u (q, p);
select is(rag.assert_retrieves('数据库', '运维/重置密码.md', 2), 2, 'the place is given');
select is(
    rag.assert_retrieves('数据库', '运维/重置密码.md', 1, '{"path_prefix": "运维/重置密码.md"}'), 1,
    'among what the filter lets through'
);
do $$ begin perform pg_temp.store('运维/备份.md', '数据库 数据库', null, 1); end $$;
select is(rag.assert_retrieves('数据库', '运维/备份.md'), 1, 'the place of the first of its chunks');
select is(rag.assert_retrieves('数据库', '运维/重置密码.md'), 3, 'a place is that of a chunk');
select throws_ok(
    $$ select rag.assert_retrieves('数据库', '运维/重置密码.md', 2) $$, 'RG005',
    '运维/重置密码.md is not among the best 2 for: 数据库', 'what comes later is not found'
);
select throws_ok(
    $$ select rag.assert_retrieves('重置密码', '重置密码.md') $$, 'RG005', null,
    'a path is given in full'
);
create function pg_temp.hint(p_question text) returns text language plpgsql as $$
declare
    v_hint text;
begin
    perform rag.assert_retrieves(p_question, 'errors.md');
    return 'none';
exception when sqlstate 'RG005' then
    get stacked diagnostics v_hint = pg_exception_hint;
    return v_hint;
end;
$$;
select is(pg_temp.hint(q), h, format('the hint for %s', q))
from (values
    ('503', 'none'), ('gnu', 'Nothing was found.'),
    ('每天', 'Found instead: 运维/备份.md'), ('tidb 每天', 'Found instead: release.md, 运维/备份.md')
) as u (q, h);
select throws_ok(
    format('select rag.assert_retrieves(%s)', a), c, null, format('assert_retrieves(%s)', a)
)
from (values
    ('''503'', null', 'RG001'), ('null, ''errors.md''', 'RG001'),
    ('''503'', ''errors.md'', 5, ''{"a": 1}''', 'RG001'), ('''503'', ''errors.md'', 21', 'RG001')
) as u (a, c);
select throws_ok(
    $$ select rag.assert_retrieves('备份', 'errors.md') $$, 'RG005',
    'errors.md is not among the best 5 for: 备份', 'what is not found is an error'
);
select throws_ok(
    $$ select rag.assert_retrieves('备份', 'errors.md', 0) $$, 'RG001', null, 'top_k is checked'
);

select * from finish();
rollback;
