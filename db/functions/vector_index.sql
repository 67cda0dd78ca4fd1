-- Approximate indexes: how far a build is, what they hold, and how much of the truth they find.

create or replace function rag.index_progress(p_provider text, p_model text, p_dim integer)
    returns table (phase text, rows_done bigint, rows_total bigint)
    language sql
    stable
    parallel safe
begin atomic
    select
        s.phase,
        greatest(
            s.tuples_done,
            n.embeddings_current_config * s.blocks_done / greatest(s.blocks_total, 1)
        ) as rows_done,
        n.embeddings_current_config as rows_total
    from rag.find_vector_index(p_provider, p_model, p_dim) as i
    inner join pg_catalog.pg_class as c
        on i.index_name = c.relname and c.relnamespace = 'rag'::regnamespace
    inner join pg_catalog.pg_stat_progress_create_index as s on c.oid = s.index_relid
    cross join rag.index_status(p_provider, p_model, p_dim) as n;
end;

comment on function rag.index_progress(text, text, integer) is
'How far the build of an approximate index is; no row when none is being built. Filled from
pg_stat_progress_create_index, which a role sees for its own builds only.';

create or replace function rag.vector_index_status(p_provider text, p_model text, p_dim integer)
    returns table (
        index_name text,
        is_valid boolean,
        indexed_rows bigint,
        size_bytes bigint,
        checked_at timestamptz,
        questions integer,
        top_k integer,
        recall double precision,
        recall_low double precision,
        recall_high double precision,
        recall_between double precision,
        recall_between_low double precision,
        recall_between_high double precision,
        warning text
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        i.index_name,
        i.is_valid,
        i.indexed_rows,
        i.size_bytes,
        s.checked_at,
        s.questions,
        s.top_k,
        s.recall,
        s.recall_low,
        s.recall_high,
        b.recall as recall_between,
        b.recall_low as recall_between_low,
        b.recall_high as recall_between_high,
        case
            when not i.is_valid
                then 'The approximate index is not complete, so searches are exact: it is being'
                    ' built, or its build was interrupted (rag db index create begins anew).'
            when least(s.recall, b.recall) < 0.95
                then format(
                    'The approximate index found only %s of the true neighbours when it was'
                    ' checked: let it look at more rows (hnsw.ef_search, see operations.md), or'
                    ' drop it (rag db index drop).',
                    round(least(s.recall, b.recall)::numeric, 3)
                )
        end as warning
    from rag.find_vector_index(p_provider, p_model, p_dim) as i
    left join rag.index_checks as s
        on
            s.embedding_provider = p_provider
            and s.embedding_model = p_model
            and s.embedding_dim = p_dim
            and s.asked = 'stored'
    left join rag.index_checks as b
        on
            b.embedding_provider = p_provider
            and b.embedding_model = p_model
            and b.embedding_dim = p_dim
            and b.asked = 'between';
end;

comment on function rag.vector_index_status(text, text, integer) is
'The approximate index of an embedding configuration, no row if there is none: its size, its recall
when it was last measured (nulls: never), and a warning where it is incomplete or one of the two
recalls was below 0.95 (see rag.index_recall).
Example: select * from rag.vector_index_status(''fake'', ''fake-lexical-v1'', 1024);';

create or replace function rag.index_recall(
    p_questions integer default 100,
    p_top_k integer default 10,
    p_provider text default null,
    p_model text default null,
    p_dim integer default null
)
    returns table (
        embedding_provider text,
        embedding_model text,
        embedding_dim integer,
        asked text,
        questions integer,
        top_k integer,
        recall double precision,
        recall_low double precision,
        recall_high double precision
    )
    language plpgsql
    stable
    parallel unsafe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
begin
    perform rag.check_top_k(p_top_k);
    if p_questions is null or p_questions < 1 then
        raise exception 'the number of vectors to look up must be at least 1, got %',
            coalesce(p_questions::text, 'null')
            using errcode = 'RG001', hint = '100 is the default.';
    end if;
    return query
    with configurations as materialized (
        select distinct e.embedding_provider, e.embedding_model, e.embedding_dim
        from rag.embeddings as e
        where (p_provider is null or e.embedding_provider = p_provider)
            and (p_model is null or e.embedding_model = p_model)
            and (p_dim is null or e.embedding_dim = p_dim)
    ),
    sampled as materialized (
        select s.*
        from configurations as f
        join rag.find_vector_index(
            f.embedding_provider, f.embedding_model, f.embedding_dim
        ) as i on i.is_valid
        cross join lateral (
            select e.*
            from rag.embeddings as e
            where e.embedding_provider = f.embedding_provider
                and e.embedding_model = f.embedding_model
                and e.embedding_dim = f.embedding_dim
                and e.embedding_half is not null
            order by hashint8(e.id), e.id
            limit p_questions
        ) as s
    ),
    looked_up as materialized (
        -- the vector itself is left out of its own neighbours: every index finds that
        select
            s.embedding_provider, s.embedding_model, s.embedding_dim, 'stored' as asked,
            s.embedding as vector, s.chunk_id as left_out
        from sampled as s
        union all
        select
            s.embedding_provider, s.embedding_model, s.embedding_dim, 'between',
            l2_normalize(s.embedding) + l2_normalize(lead(s.embedding) over neighbours), null
        from sampled as s
        window neighbours as (
            partition by s.embedding_provider, s.embedding_model, s.embedding_dim
            order by hashint8(s.id), s.id
        )
    ),
    shares as (
        select l.embedding_provider, l.embedding_model, l.embedding_dim, l.asked, r.share
        from looked_up as l
        cross join lateral (
            select array_agg(n.distance order by n.distance) as distances
            from rag.find_nearest(
                l.vector, l.embedding_provider, l.embedding_model, l.embedding_dim,
                p_top_k + 1, '{}', 'exact'
            ) as n
            where n.chunk_id is distinct from l.left_out and n.chunk_id is not null
        ) as t
        cross join lateral (
            select
                least(count(*) filter (
                    where n.distance <= t.distances[least(p_top_k, cardinality(t.distances))]
                ), p_top_k)
                / least(p_top_k, cardinality(t.distances))::float8 as share
            from rag.find_nearest(
                l.vector, l.embedding_provider, l.embedding_model, l.embedding_dim,
                p_top_k + 1, '{}', 'index'
            ) as n
            where n.chunk_id is distinct from l.left_out
        ) as r
        where l.vector is not null and t.distances is not null
    ),
    means as (
        select
            s.embedding_provider, s.embedding_model, s.embedding_dim, s.asked,
            count(*)::integer as questions, avg(s.share) as recall
        from shares as s
        group by s.embedding_provider, s.embedding_model, s.embedding_dim, s.asked
    )
    select
        m.embedding_provider, m.embedding_model, m.embedding_dim, m.asked, m.questions, p_top_k,
        m.recall, greatest(0, w.centre - w.half_width),
        greatest(m.recall, least(1, w.centre + w.half_width))
    from means as m
    cross join lateral (
        select
            (m.recall + 1.9208 / m.questions) / (1 + 3.8416 / m.questions) as centre,
            1.96 / (1 + 3.8416 / m.questions) * sqrt(
                m.recall * (1 - m.recall) / m.questions + 0.9604 / m.questions ^ 2
            ) as half_width
    ) as w
    order by m.embedding_provider, m.embedding_model, m.embedding_dim, m.asked desc;
end;
$$;

comment on function rag.index_recall(integer, integer, text, text, integer) is
'Recall of each approximate index (or of the one configuration given): the share of the p_top_k true
neighbours that a search by index finds, for p_questions stored vectors (asked: stored; the vector
itself left out) and for points halfway between two of them (asked: between). Questions that resemble
no chunk are about as hard as the latter; stored vectors alone would flatter the index. They are drawn
by a hash of their id, so the same index gives the same figure. The interval is Wilson''s at 95 % with
one trial a vector (1.96 squared is 3.8416): on the wide side, for no share varies more than a yes or
no. Takes as long as twice p_questions exact searches. Raises RG001.
Example: select * from rag.index_recall(100);';

create or replace function rag.check_index_recall(
    p_provider text,
    p_model text,
    p_dim integer,
    p_questions integer default 100,
    p_top_k integer default 10
)
    returns setof rag.index_checks
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    return query
    insert into rag.index_checks as k (
        embedding_provider, embedding_model, embedding_dim, asked, checked_at, questions, top_k,
        recall, recall_low, recall_high
    )
    select
        r.embedding_provider, r.embedding_model, r.embedding_dim, r.asked, clock_timestamp(),
        r.questions, r.top_k, r.recall, r.recall_low, r.recall_high
    from rag.index_recall(p_questions, p_top_k, p_provider, p_model, p_dim) as r
    on conflict on constraint index_checks_pkey do update
    set
        checked_at = excluded.checked_at,
        questions = excluded.questions,
        top_k = excluded.top_k,
        recall = excluded.recall,
        recall_low = excluded.recall_low,
        recall_high = excluded.recall_high
    returning k.*;
end;
$$;

comment on function rag.check_index_recall(text, text, integer, integer, integer) is
'Measures the recall of a configuration''s approximate index (rag.index_recall) and keeps it, so
that status and readiness can warn; no row where there is no complete index. Raises RG001.';

create or replace function rag.forget_index_check(p_provider text, p_model text, p_dim integer)
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    delete from rag.index_checks as k
    where k.embedding_provider = p_provider
        and k.embedding_model = p_model
        and k.embedding_dim = p_dim;
end;
$$;

comment on function rag.forget_index_check(text, text, integer) is
'Forgets what was measured of an approximate index that is to be dropped or built anew.';
