-- The chunks that fit the words of a question best: BM25 as one inner product a chunk.

create or replace function rag.scan_terms(
    p_query public.sparsevec,
    p_vault text default null,
    p_bound double precision default null,
    p_limit integer default null
)
    returns table (chunk_id bigint, product double precision)
    language sql
    stable
    parallel safe
begin atomic
    select
        t.chunk_id,
        -(p_query <#> t.terms) as product
    from rag.chunk_terms as t
    where
        (p_query <#> t.terms) < 0
        and t.chunk_id is not null
        and (p_vault is null or t.scope = p_vault)
        and (p_bound is null or (p_query <#> t.terms) <= -p_bound)
    order by p_query <#> t.terms
    limit p_limit;
end;

comment on function rag.scan_terms(public.sparsevec, text, double precision, integer) is
'Chunks, of one vault if given, that hold at least one term of a question''s vector, by the inner
product with it, highest first, none below p_bound. Inlined where the vector is a value, so that the
plan shows scan and filter. In psql:
select rag.sparse_vector(array[rag.term_dim(''数据'')], ''{1}'') as q \gset
explain (analyze, buffers) select * from rag.scan_terms(:''q'', p_limit => 10);';

create or replace function rag.scan_filtered_terms(
    p_query public.sparsevec,
    p_filter jsonb,
    p_bound double precision default null,
    p_limit integer default null
)
    returns table (chunk_id bigint, product double precision)
    language sql
    stable
    parallel safe
begin atomic
    select
        t.chunk_id,
        -(p_query <#> t.terms) as product
    from rag.chunk_terms as t
    where
        t.chunk_id = any(array(select f.chunk_id from rag.filtered_chunks(p_filter) as f))
        and (p_query <#> t.terms) < 0
        and (p_bound is null or (p_query <#> t.terms) <= -p_bound)
    order by p_query <#> t.terms
    limit p_limit;
end;

comment on function rag.scan_filtered_terms(
    public.sparsevec, jsonb, double precision, integer
) is
'Like rag.scan_terms, among the chunks that pass a filter: those are looked up first.';

create or replace function rag.list_term_candidates(
    p_query public.sparsevec,
    p_filter jsonb,
    p_bound double precision default null,
    p_limit integer default null
)
    returns table (chunk_id bigint, product double precision)
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
    set plan_cache_mode = force_custom_plan
    set jit = off
as $$
begin
    -- `return query`: the one kind of statement in plpgsql that may use parallel workers
    if p_filter - 'vault' = '{}' then
        return query
        select s.chunk_id, s.product
        from rag.scan_terms(p_query, rtrim(p_filter ->> 'vault', '/'), p_bound, p_limit) as s;
    else
        return query
        select s.chunk_id, s.product
        from rag.scan_filtered_terms(p_query, p_filter, p_bound, p_limit) as s;
    end if;
end;
$$;

comment on function rag.list_term_candidates(
    public.sparsevec, jsonb, double precision, integer
) is
'The p_limit chunks of highest product with a question''s vector, or all from p_bound on, among
those that pass a filter. The plan is made for the values at hand and without compiling.';

create or replace function rag.weigh_question(p_question text, p_vault text default null)
    returns table (
        term text, dim integer, chunks bigint, idf double precision, weight double precision
    )
    language sql
    stable
    parallel safe
begin atomic
    with
    terms as materialized (
        select distinct on (rag.term_dim(t.term))
            t.term,
            t.position,
            rag.term_dim(t.term) as dim
        from unnest(rag.question_terms(p_question)) with ordinality as t (term, position)
        order by rag.term_dim(t.term), t.position
    ),
    counts as materialized (
        select
            s.dim,
            s.chunks
        from rag.term_statistics(
            array(select t.dim from terms as t) || 0, p_vault
        ) as s
    )
    select
        t.term,
        t.dim,
        c.chunks,
        ln(1 + (greatest(a.chunks, c.chunks) - c.chunks + 0.5::double precision) / (c.chunks + 0.5))
            as idf,
        case
            when rag.is_stop_word(t.term) then 0
            else ln(1 + (greatest(a.chunks, c.chunks) + 50 - c.chunks + 0.5::double precision)
                / (c.chunks + 0.5))
        end as weight
    from terms as t
    inner join counts as c on t.dim = c.dim
    inner join counts as a on a.dim = 0
    order by t.position;
end;

comment on function rag.weigh_question(text, text) is
'The terms of a question with their dimension, the number of chunks that hold each, and its idf,
ln(1 + (N - n + 0.5) / (n + 0.5)), N being all chunks (Robertson and Zaragoza, 2009; the 1 + keeps it
above 0). Of one vault or of all that the caller may see. weight is the idf that the term would have
beside fifty more chunks without any of the terms: what coverage goes by, because idf alone makes the
words that a base of few chunks holds count next to nothing against those it lacks. A stop word, by
which a question is searched that has nothing else, has weight 0.
Example: select * from rag.weigh_question(''如何重置数据库密码？'');';

create or replace function rag.weigh_sentences(
    p_question text, p_terms text[], p_weights double precision[]
)
    returns table (weights public.sparsevec, most double precision)
    language sql
    immutable
    parallel safe
begin atomic
    select
        rag.sparse_vector(array_agg(rag.term_dim(w.term)), array_agg(w.weight)) as weights,
        sum(w.weight) / (1 - 0.1 * ln(count(*) over ())::double precision) as most
    from (
        select
            p.sentence,
            p.place
        from regexp_split_to_table(p_question, '[.!?;]+(?=\s)|[。！？；\n]+')
            with ordinality as p (sentence, place)
        where p.sentence <> p_question and p.place <= 50
    ) as s
    cross join unnest(rag.question_terms(s.sentence)) as t (term)
    inner join unnest(p_terms, p_weights) as w (term, weight) on t.term = w.term
    group by s.place
    having
        sum(case when t.term ~ '^[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]' then 0.5 else 1 end)
        >= 3;
end;

comment on function rag.weigh_sentences(text, text[], double precision[]) is
'The sentences of a question that has several, each as a vector of the weights of its terms (those
of rag.weigh_question for the whole) with what a chunk may have of it at most: of the first fifty those
that say enough to be a question, three words or six pairs of CJK characters. The more there are,
the likelier one is covered by chance: of n sentences each counts 0.1 ln n less. Example:
select w.* from rag.weigh_sentences(''Hello there. How long is the free trial?'',
array[''long'', ''free'', ''trial''], ''{1,2,3}'') as w;';

create or replace function rag.prepare_question(p_question text, p_vault text default null)
    returns table (
        terms text[],
        units public.sparsevec[],
        query public.sparsevec,
        sentences public.sparsevec[],
        most double precision[]
    )
    language sql
    stable
    parallel safe
begin atomic
    with
    asked as materialized (
        select
            array_agg(w.term) as terms,
            array_agg(rag.sparse_vector(array[w.dim], '{1}')) as units,
            rag.sparse_vector(array_agg(w.dim), array_agg(w.idf)) as query,
            rag.sparse_vector(array_agg(w.dim), array_agg(w.weight)) as weights,
            array_agg(w.weight) as each_weight,
            sum(w.weight) as most
        from rag.weigh_question(p_question, p_vault) as w
        having count(*) > 0
    )
    select
        a.terms,
        a.units,
        a.query,
        a.weights || s.sentences as sentences,
        a.most || s.most as most
    from asked as a
    cross join lateral (
        select
            array_agg(p.weights) as sentences,
            array_agg(p.most) as most
        from rag.weigh_sentences(p_question, a.terms, a.each_weight) as p
    ) as s;
end;

comment on function rag.prepare_question(text, text) is
'What chunks are compared with for a question, no row for one without words: its terms (of
rag.weigh_question), each as a vector of its own (units), all with their idf as one (query), and for
rag.measure_coverage the question and each of its sentences with their weights.
Example: select q.terms, q.most from rag.prepare_question(''如何重置数据库密码？'') as q;';

create or replace function rag.measure_coverage(
    p_terms public.sparsevec, p_sentences public.sparsevec[], p_most double precision[]
)
    returns double precision
    language sql
    immutable
    parallel safe
begin atomic
    select least(1, coalesce(max(-(p.weights <#> p_terms) / (15 * nullif(p.most, 0))), 0))
    from unnest(p_sentences, p_most) as p (weights, most);
end;

comment on function rag.measure_coverage(
    public.sparsevec, public.sparsevec[], double precision[]
) is
'How much a chunk with these terms has of a question, 0 to 1: the weights of the terms that it has
(rag.weigh_question), times their share of the highest that a term can weigh in a chunk, as a share of
all weights; of a question of several sentences the one counts that it has most of. The last two
arguments are those of rag.prepare_question.';

create or replace function rag.find_lexical(
    p_question text, p_limit integer, p_filter jsonb default '{}'
)
    returns table (
        chunk_id bigint,
        lexical_rank bigint,
        lexical_score double precision,
        coverage double precision,
        matched_terms text[]
    )
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_more constant integer := 100;  -- beyond p_limit, to see whether ties go on
    v_new_ids bigint[];
    v_new_terms sparsevec[];
    v_passing boolean[];
    v_terms text[];
    v_units sparsevec[];
    v_query sparsevec;
    v_sentences sparsevec[];
    v_most double precision[];
    v_ids bigint[];
    v_products double precision[];
begin
    select array_agg(u.chunk_id), array_agg(u.terms), array_agg(u.passes)
    into v_new_ids, v_new_terms, v_passing
    from rag.unstored_terms(p_filter) as u;

    select q.terms, q.units, q.query, q.sentences, q.most
    into v_terms, v_units, v_query, v_sentences, v_most
    from rag.prepare_question(p_question, rtrim(p_filter ->> 'vault', '/')) as q;
    if v_terms is null then
        return;
    end if;

    select array_agg(c.chunk_id), array_agg(c.product) into v_ids, v_products
    from rag.list_term_candidates(v_query, p_filter, null, p_limit + v_more) as c;
    if v_products[p_limit] = v_products[p_limit + v_more] then
        select array_agg(c.chunk_id), array_agg(c.product) into v_ids, v_products
        from rag.list_term_candidates(v_query, p_filter, v_products[p_limit]) as c;
    end if;

    return query
    with
    found as (
        select f.chunk_id, f.product
        from unnest(v_ids, v_products) as f (chunk_id, product)
        where f.product >= v_products[p_limit] or v_products[p_limit] is null
        union all
        select n.chunk_id, -(v_query <#> n.terms)
        from unnest(v_new_ids, v_new_terms, v_passing) as n (chunk_id, terms, passes)
        where n.passes and (v_query <#> n.terms) < 0
    ),
    ranked as (
        select
            f.chunk_id,
            f.product,
            row_number() over (
                order by f.product desc, c.relative_path collate "C", c.heading_path collate "C",
                c.chunk_index, d.vault_path collate "C"
            ) as rank
        from found as f
        join rag.chunks as c on c.id = f.chunk_id
        join rag.documents as d on d.id = c.document_id
    )
    select
        r.chunk_id,
        r.rank,
        r.product * (rag.bm25_k1() + 1) / 15,
        rag.measure_coverage(r.terms, v_sentences, v_most),
        array(
            select m.term
            from unnest(v_terms, v_units) with ordinality as m (term, unit, position)
            where (m.unit <#> r.terms) < 0
            order by m.position
        )
    from (
        select
            k.chunk_id, k.rank, k.product,
            coalesce(
                (select t.terms from rag.chunk_terms as t where t.chunk_id = k.chunk_id),
                v_new_terms[array_position(v_new_ids, k.chunk_id)]
            ) as terms
        from ranked as k
        where k.rank <= p_limit
    ) as r
    order by r.rank;
end;
$$;

comment on function rag.find_lexical(text, integer, jsonb) is
'The p_limit chunks that fit the words of a question best, best first: BM25 score (rag.weigh_terms
times the idf of rag.weigh_question), coverage (rag.measure_coverage) and the terms of the question that the chunk has. A chunk with
none of them is not found. Ties are broken by source, heading_path, chunk_index, vault_path
(collation "C"). Checks nothing: callers do.
Example: select * from rag.find_lexical(''重置密码'', 5);';
