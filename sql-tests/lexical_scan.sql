-- Tests of db/functions/lexical_scan.sql: the chunks that fit the words of a question best.

begin;
select plan(32);

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
select is_empty($$ select * from rag.weigh_question('？') $$, 'a question without words has none');

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
end;
$$;
select pg_temp.check_found();
select is(rag.fill_terms(), 5, 'terms are stored');
select pg_temp.check_found();

-- lag.md: its terms are replic, lag, lag, md: k = 1.2 * (0.25 + 0.75 * 4 / 300) = 0.312,
-- step 15 * 2 / 2.312 = 12.98 is 13; of idf 0.875469 and ln(12)
select results_eq(
    $$ select c.relative_path, round(f.lexical_score::numeric, 4), round(f.coverage::numeric, 4),
        f.matched_terms
    from rag.find_lexical('nowhere lag', 5, '{"path_prefix": "lag.md"}') as f
    join rag.chunks as c on c.id = f.chunk_id $$,
    format(
        $$ values ('lag.md', %s, %s, '{lag}'::text[]) $$,
        round(0.875469 * 2.2 * 13 / 15, 4), round(0.875469 * 13 / 15 / (0.875469 + 2.484907), 4)
    ), 'score, coverage and matched terms'
);
select is(
    (
        select f.matched_terms from rag.find_lexical('tidb_mem_quota_query set lag', 1) as f
    ), '{tidb,mem,quota,queri,set,tidb_mem_quota_query}', 'matched terms as the question has them'
);

-- Ties --------------------------------------------------------------------------------------------

do $$ begin
    for i in 1..300 loop
        perform pg_temp.store(format('t/%s.md', lpad(i::text, 3, '0')), 'tie', '/t', 301 - i);
    end loop;
    perform pg_temp.store('t/000.md', 'tie', '/t', 1);
    perform pg_temp.store('t/000.md', 'tie', '/t', 0);
    perform pg_temp.store('t/000.md', 'tie', '/s', 0);
end $$;
create function pg_temp.check_ties() returns setof text language plpgsql as $$
begin
    return next results_eq(
        $q$ select d.vault_path || ' ' || c.relative_path || ' ' || c.chunk_index
        from rag.find_lexical('tie', 5, '{"path_prefix": "t"}') as f
        join rag.chunks as c on c.id = f.chunk_id join rag.documents as d on d.id = c.document_id
        order by f.lexical_rank $q$,
        $q$ values ('/s t/000.md 0'), ('/t t/000.md 0'), ('/t t/000.md 1'), ('/t t/001.md 300'),
        ('/t t/002.md 299') $q$, 'ties are broken by source, chunk_index and vault'
    );
    return next is(
        (select array_agg(f.chunk_id order by f.lexical_rank) from rag.find_lexical('tie', 20) as f),
        (
            select (array_agg(f.chunk_id order by f.lexical_rank))[:20]
            from rag.find_lexical('tie', 303) as f
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
