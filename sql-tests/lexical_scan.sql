-- Tests of db/functions/lexical_scan.sql: the chunks that fit the words of a question best.

begin;
select plan(115);

create function pg_temp.store(
    p_source text, p_content text, p_vault text default '/v', p_index integer default 0,
    p_heading text[] default '{}', p_tags text[] default '{}'
) returns void language sql as $$
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values (p_vault, p_vault || '/' || p_source, p_source, 'd')
    on conflict (vault_path, relative_path) do nothing;
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, heading_path, tags,
        content_hash
    )
    select d.id, p_index, p_content, d.file_path, d.relative_path, p_heading, p_tags, 'h'
    from rag.documents as d where d.vault_path = p_vault and d.relative_path = p_source;
$$;

-- sources in the order of a search
create function pg_temp.found(
    p_question text, p_limit integer default 10, p_filter jsonb default '{}'
) returns text language sql as $$
    select coalesce(string_agg(c.relative_path, ', ' order by f.lexical_rank), '')
    from rag.find_lexical(p_question, p_limit, p_filter) as f
    join rag.chunks as c on c.id = f.chunk_id
$$;

-- sources and products of a scan's rows, best first
create function pg_temp.scanned(p_rows text) returns text language plpgsql as $$
declare
    v_found text;
begin
    execute 'select string_agg(c.relative_path || '' '' || s.product, '', '' order by s.product desc)
        from rag.' || p_rows || ' as s left join rag.chunks as c on c.id = s.chunk_id' into v_found;
    return coalesce(v_found, '');
end;
$$;

select is(pg_temp.found('lag'), '', 'in an empty index nothing is found');

do $$ begin
    perform pg_temp.store('reset.md', '如何重置数据库密码');
    perform pg_temp.store('weak.md', '密码');
    perform pg_temp.store('lag.md', 'Replication lag');
    perform pg_temp.store('lag two.md', 'lag lag lag', '/w');
    perform pg_temp.store('ops/quota.md', 'set tidb_mem_quota_query', p_tags => '{ops}');
end $$;

-- weigh_question ----------------------------------------------------------------------------------

-- 5 chunks: ln(1 + (5 - n + 0.5) / (n + 0.5)) is ln(1 + 3.5 / 2.5) for two of them, ln(12) for none
select results_eq(
    $$ select w.term, w.dim, w.chunks, round(w.idf::numeric, 6)
    from rag.weigh_question('What is lag, nowhere?') as w $$,
    $$ values ('lag', rag.term_dim('lag'), 2::bigint, 0.875469), ('nowher', rag.term_dim('nowher'), 0,
    2.484907) $$, 'each term of a question has its idf'
);
select results_eq(
    $$ select w.chunks, round(w.idf::numeric, 6) from rag.weigh_question('lag', '/w') as w $$,
    $$ values (1::bigint, 0.287682) $$, 'of one vault'
);
select is_empty(
    format('select * from rag.weigh_question(%L)', q), format('nothing to weigh in %L', q)
)
from unnest(array['？', '', null]) as u (q);
select results_eq(
    $$ select w.term, w.chunks from rag.weigh_question('密码 lag Lag lags', '/none') as w $$,
    $$ values ('lag', 0::bigint), ('密码', 0) $$, 'each term once, also where there is nothing'
);

-- find_lexical, before and after the terms are stored ---------------------------------------------

create function pg_temp.check_found() returns setof text language plpgsql as $$
begin
    return next is(pg_temp.found('重置密码'), 'reset.md, weak.md', 'not all pairs must be there');
    return next is(pg_temp.found('tidb_mem_quota_query'), 'ops/quota.md', 'an identifier as typed');
    return next is(pg_temp.found('the quota'), 'ops/quota.md', 'a part of one');
    return next is(pg_temp.found('lag'), 'lag two.md, lag.md', 'more often is better');
    return next is(pg_temp.found('lag', 1), 'lag two.md', 'no more than asked for');
    return next is(pg_temp.found('nowhere'), '', 'a chunk with none of the words is not found');
    return next is(pg_temp.found('lag', 10, '{"vault": "/v/"}'), 'lag.md', 'of one vault');
    return next is(
        pg_temp.found('lag quota', 10, '{"path_prefix": "ops"}'), 'ops/quota.md', 'below a path'
    );
    return next is(
        pg_temp.found('lag quota', 10, '{"vault": "/v", "tags": {"any": ["ops"]}}'), 'ops/quota.md',
        'with a tag'
    );
    return next is(pg_temp.found('lag', 10, '{"vault": "/x"}'), '', 'of a vault that is not there');
    return next is(
        pg_temp.found('lag quota 密码', 10, '{"path_prefix": "no"}'), '', 'below no path that there is'
    );
    return query select is(pg_temp.found(q), '', format('nothing is found for %L', q))
    from unnest(array['', '？', 'the', null]) as u (q);
    return next is(pg_temp.found('ＬＡＧ？'), 'lag two.md, lag.md', 'full width and upper case');
    return next is(
        pg_temp.found('the replication of lags'), 'lag.md, lag two.md', 'by stems, without stop words'
    );
    -- of 4 chunks one has replic, one lag: both ln(1 + 3.5 / 1.5) = 1.203973; the five terms are
    -- replic, lag, lag, md, lag.md: k = 1.2 * (0.25 + 0.75 * 5 / 300) = 0.315,
    -- 15 / 1.315 = 11.4 is 11, 30 / 2.315 = 12.96 is 13
    return next row_eq(
        $q$ select c.relative_path, f.lexical_rank, round(f.lexical_score::numeric, 4),
            round(f.coverage::numeric, 4), f.matched_terms
        from rag.find_lexical('lag of replication', 5, '{"vault": "/v"}') as f
        join rag.chunks as c on c.id = f.chunk_id $q$,
        row(
            'lag.md'::text, 1::bigint, round(1.203973 * 2.2 * (11 + 13) / 15, 4), round(24 / 30.0, 4),
            '{lag,replic}'::text[]
        ), 'the score is BM25'
    );
end;
$$;
select pg_temp.check_found();

select is(
    pg_temp.scanned(format('scan_terms(%L)', rag.sparse_vector(array[rag.term_dim('lag')], '{1}'))),
    '', 'a scan reads stored terms only'
);
create temp table hits as select f.* from rag.find_lexical('重置 lag quota', 20) as f;
select is((select count(*) from hits), 4::bigint, 'some are found before their terms are stored');
select is(rag.fill_terms(2), 2, 'some terms are stored');
select results_eq(
    $$ select * from rag.find_lexical('重置 lag quota', 20) $$, 'select * from hits',
    'the same is found when some terms are stored'
);
select is(rag.fill_terms(), 3, 'all terms are stored');
select results_eq(
    $$ select * from rag.find_lexical('重置 lag quota', 20) $$, 'select * from hits',
    'and when all are'
);
select pg_temp.check_found();

-- scan_terms, scan_filtered_terms, list_term_candidates -------------------------------------------

-- lag.md has 13, as above; lag two.md has lag, lag, lag, lag, two, md, two.md:
-- k = 1.2 * (0.25 + 0.75 * 7 / 300) = 0.321, 15 * 4 / 4.321 = 13.9 is 14
select is(
    pg_temp.scanned(replace(
        rows, ':q', quote_literal(rag.sparse_vector(array[rag.term_dim('lag')], '{1}'))
    )), found, rows
)
from (values
    ('scan_terms(:q)', 'lag two.md 14, lag.md 13'), ('scan_terms(:q, ''/v'')', 'lag.md 13'),
    ('scan_terms(:q, p_bound => 14)', 'lag two.md 14'),
    ('scan_terms(:q, p_bound => 13)', 'lag two.md 14, lag.md 13'),
    ('scan_terms(:q, p_bound => 14.5)', ''), ('scan_terms(:q, p_limit => 1)', 'lag two.md 14'),
    ('scan_terms(:q, ''/v'', 13, 1)', 'lag.md 13'), ('scan_terms(:q, ''/none'')', ''),
    ('scan_filtered_terms(:q, ''{}'')', 'lag two.md 14, lag.md 13'),
    ('scan_filtered_terms(:q, ''{"path_prefix": "lag.md"}'')', 'lag.md 13'),
    ('scan_filtered_terms(:q, ''{"path_prefix": "ops"}'')', ''),
    ('scan_filtered_terms(:q, ''{}'', p_bound => 14)', 'lag two.md 14'),
    ('scan_filtered_terms(:q, ''{}'', p_limit => 1)', 'lag two.md 14'),
    ('list_term_candidates(:q, ''{}'')', 'lag two.md 14, lag.md 13'),
    ('list_term_candidates(:q, ''{"vault": "/v/"}'')', 'lag.md 13'),
    ('list_term_candidates(:q, ''{"path_prefix": "lag.md"}'')', 'lag.md 13'),
    ('list_term_candidates(:q, ''{"vault": "/w", "path_prefix": "lag.md"}'')', ''),
    ('list_term_candidates(:q, ''{}'', 14)', 'lag two.md 14'),
    ('list_term_candidates(:q, ''{"path_prefix": "lag.md"}'', 14)', ''),
    ('list_term_candidates(:q, ''{}'', null, 1)', 'lag two.md 14')
) as u (rows, found);
select is(
    pg_temp.scanned(format('scan_terms(%L)', rag.sparse_vector(
        array[rag.term_dim('lag'), rag.term_dim('replic')], '{0.5,2}'
    ))), 'lag.md 28.5, lag two.md 7', 'a product is the sum over the terms of the question'
);

-- Score, coverage, matched terms ------------------------------------------------------------------

-- lag.md has the step 13, as above, of idf 0.875469; beside fifty more chunks the weights are
-- ln(1 + 53.5 / 2.5) = 3.109061 and ln(1 + 55.5 / 0.5) = 4.718499
select results_eq(
    $$ select c.relative_path, round(f.lexical_score::numeric, 4), round(f.coverage::numeric, 4),
        f.matched_terms
    from rag.find_lexical('nowhere lag', 5, '{"path_prefix": "lag.md"}') as f
    join rag.chunks as c on c.id = f.chunk_id $$,
    format(
        $$ values ('lag.md', %s, %s, '{lag}'::text[]) $$,
        round(0.875469 * 2.2 * 13 / 15, 4), round(3.109061 * 13 / 15 / (3.109061 + 4.718499), 4)
    ), 'score, coverage and matched terms'
);
select is(
    (
        select f.matched_terms from rag.find_lexical('tidb_mem_quota_query set lag', 1) as f
    ), '{tidb,mem,quota,queri,set,tidb_mem_quota_query}', 'matched terms as the question has them'
);
select is(
    (select f.matched_terms from rag.find_lexical(q, 1) as f), m::text[],
    format('matched terms in the order of: %s', q)
)
from (values
    ('quota set tidb', '{quota,set,tidb}'), ('set tidb quota', '{set,tidb,quota}'),
    ('密码的重置', '{密码,重置}'), ('重置的密码', '{重置,密码}'), ('how is the quota set?', '{quota,set}')
) as u (q, m);

do $$ begin
    perform pg_temp.store('full/both.md', repeat('gnu gnat ', 100));
    perform pg_temp.store('full/one.md', repeat('gnu ', 100));
    perform pg_temp.store('full/once.md', 'gnu gnat' || repeat(' ox', 1000));
end $$;
-- gnu is in three of 8 + 50 chunks, ln(1 + 55.5 / 3.5) = 2.824775, gnat in two, ln(1 + 56.5 / 2.5) = 3.161247
-- once.md has 1006 terms: k = 1.2 * (0.25 + 0.75 * 1006 / 300) = 3.318, 15 / 4.318 = 3.47 is 3
select results_eq(
    $$ select c.relative_path, round(f.coverage::numeric, 5)
    from rag.find_lexical('gnu gnat', 5) as f join rag.chunks as c on c.id = f.chunk_id $$,
    format(
        $$ values ('full/both.md', 1.00000), ('full/one.md', %s), ('full/once.md', 0.20000) $$,
        round(2.824775 / (2.824775 + 3.161247), 5)
    ), 'coverage is 1 where all terms are often, less where one is missing or they are rare'
);
select is_empty(
    $$ select q, f.coverage
    from unnest(array['gnu', 'gnat gnu none', '重置密码', 'lag quota', 'ox md', '密码']) as q
    cross join lateral rag.find_lexical(q, 20) as f
    where (f.coverage > 0 and f.coverage <= 1 and f.lexical_score > 0) is not true $$,
    'coverage is never more than 1, and nothing is found that has none'
);
delete from rag.documents as d where starts_with(d.relative_path, 'full/');

do $$ begin
    perform pg_temp.store('stop.md', 'how are you, what is this');
end $$;
select results_eq(
    $$ select distinct f.coverage, cardinality(f.matched_terms) > 1
    from rag.find_lexical('How are you?', 1) as f $$,
    'values (0::float8, true)', 'stop words alone find, but cover nothing'
);
delete from rag.documents as d where d.relative_path = 'stop.md';

-- Several sentences -------------------------------------------------------------------------------

select results_eq(
    format(
        $$ select round(w.most::numeric, 4) from rag.weigh_sentences(
            %L, array['nowher', 'els', 'lag', 'quota', '重置', '置密', '密码', '码的', '的数', '数据', '据库'],
            '{1,2,4,8,1,1,1,1,1,1,1}'
        ) as w order by w.most $$, q
    ),
    case when cardinality(m) = 0 then 'select 1::numeric limit 0' else format('select unnest(%L::numeric[])', m) end,
    format('sentences of: %s', q)
)
from (values
    ('lag quota nowhere else', '{}'::numeric[]),                   -- one: the question itself
    ('lag quota nowhere', '{}'), ('lag quota nowhere?', '{}'),
    ('Good morning. lag quota nowhere?', '{13}'),                  -- words that the weights do not have
    ('lag quota. nowhere else.', '{}'),                            -- two words are too few
    -- 13 / (1 - 0.1 ln 2), 14 / (1 - 0.1 ln 2)
    ('lag quota nowhere! lag quota else?', '{13.9682,15.0427}'),
    ('v8.5.1 lag quota nowhere', '{}'),                            -- a dot inside a word ends nothing
    ('密码的数据库。lag', '{}'), ('重置密码的数据库。lag', '{7}')  -- five and seven pairs
) as u (q, m);
do $$ begin
    perform pg_temp.store('sentence.md', repeat('walrus ibex okapi ', 50));
end $$;
select is(
    (
        select round((f.coverage / a.coverage)::numeric, 4)
        from rag.find_lexical(q, 1) as f
        cross join rag.find_lexical('walrus ibex okapi', 1) as a
    ), share, format('a chunk covers its sentence of: %s', q)
)
from (values
    ('Is it a walrus, ibex or okapi?', 1.0000),
    ('Hello from Petra of Brightwater. Is it a walrus, ibex or okapi?', 0.9307),
    ('没有一个人知道这件事情。walrus ibex okapi', 0.9307)
) as u (q, share);
delete from rag.documents as d where d.relative_path = 'sentence.md';

-- Ties --------------------------------------------------------------------------------------------

do $$ begin
    for i in 1..300 loop
        perform pg_temp.store(format('t/%s.md', lpad(i::text, 3, '0')), 'tie', '/t', 301 - i);
    end loop;
    perform pg_temp.store('t/000.md', 'tie', '/t', 1);
    perform pg_temp.store('t/000.md', 'tie', '/t', 0);
    perform pg_temp.store('t/000.md', 'tie', '/s', 0);
    -- headings without a word, so that the score is the same; upper case comes first in "C"
    perform pg_temp.store('t/000.md', 'tie', '/t', 3, '{!}');
    perform pg_temp.store('t/000.md', 'tie', '/t', 2, '{?}');
    perform pg_temp.store('t/a.md', 'tie', '/t');
    perform pg_temp.store('t/Z.md', 'tie', '/t');
end $$;
create temp view ties as
select d.vault_path, c.relative_path, c.heading_path, c.chunk_index, c.id
from rag.chunks as c join rag.documents as d on d.id = c.document_id
where starts_with(c.relative_path, 't/');
create function pg_temp.check_ties() returns setof text language plpgsql as $$
begin
    return next results_eq(
        $q$ select d.vault_path || ' ' || c.relative_path || ' ' || c.chunk_index
        from rag.find_lexical('tie', 7, '{"path_prefix": "t"}') as f
        join rag.chunks as c on c.id = f.chunk_id join rag.documents as d on d.id = c.document_id
        order by f.lexical_rank $q$,
        $q$ values ('/s t/000.md 0'), ('/t t/000.md 0'), ('/t t/000.md 1'), ('/t t/000.md 3'),
        ('/t t/000.md 2'), ('/t t/001.md 300'), ('/t t/002.md 299') $q$,
        'ties are broken by source, heading_path, chunk_index and vault'
    );
    return query select results_eq(
        format('select f.chunk_id from rag.find_lexical(''tie'', %s) as f', k),
        format(
            $q$ select t.id from ties as t order by t.relative_path collate "C",
            t.heading_path collate "C", t.chunk_index, t.vault_path collate "C" limit %s $q$, k
        ), format('the first %s of 307 that tie', k)
    )
    from unnest(array[1, 20, 204, 206, 207, 208, 306, 307, 1000]) as k;
    return next is(
        (select array_agg(f.chunk_id order by f.lexical_rank) from rag.find_lexical('tie', 20) as f),
        (
            select (array_agg(f.chunk_id order by f.lexical_rank))[:20]
            from rag.find_lexical('tie', 307) as f
        ), 'a tie is cut at the same place as in a longer list'
    );
end;
$$;
select pg_temp.check_ties();
do $$ begin perform rag.fill_terms(); end $$;
select pg_temp.check_ties();
delete from rag.documents as d where d.relative_path = 't/000.md';
select is(pg_temp.found('tie', 1), 't/001.md', 'what is deleted is not found');

select * from finish();
rollback;
