-- The nearest vectors of one embedding configuration: an exact scan in two stages that proves its
-- answer, or an approximate index where one was made. docs/why.md has the figures.
--
-- Stage one reads the half vectors, which lie in the rows, and keeps the best k and some more.
-- Stage two computes the true distances of those. The half distance is wrong by at most
-- rag.half_error(): if the k-th true distance is better than the last candidate's by more than
-- that, no other row can belong in the answer. If not, every row within the error is compared.

create or replace function rag.half_error()
    returns double precision
    language sql
    immutable
    parallel safe
return 0.00125;

comment on function rag.half_error() is
'Largest difference between a cosine distance and the one from half vectors of length one. Rounding
to half precision moves a vector by at most 2^-11 of its length (2^-25 a coordinate where that is
more): 0.000490 for each of the two vectors. Sums of 1024 products in single precision add at most
1024 * 2^-24 = 0.000061 in the half distance and twice that in the full one. Together 0.00117.';

create or replace function rag.half_vector(p_embedding public.vector)
    returns public.halfvec
    language sql
    immutable
    parallel safe
return case
    when public.vector_norm(p_embedding) between 1e-12 and 1e12
        then public.l2_normalize(p_embedding)::public.halfvec(1024)
end;

comment on function rag.half_vector(public.vector) is
'The vector at length one and half precision, as embeddings.embedding_half has it; null for a zero
vector, and for a length at which single precision can no longer be trusted.';

create or replace function rag.embedding_key(p_provider text, p_model text, p_dim integer)
    returns bigint
    language sql
    immutable
    parallel safe
return hashtextextended(p_provider || chr(31) || p_model, p_dim);

comment on function rag.embedding_key(text, text, integer) is
'The embedding_key of rows embedded by this provider, model and dim.';

create or replace function rag.scan_halves(
    p_half public.halfvec,
    p_provider text,
    p_model text,
    p_dim integer,
    p_vault text default null,
    p_bound double precision default null,
    p_limit integer default null
)
    returns table (embedding_id bigint, half_distance double precision)
    language sql
    stable
    parallel safe
begin atomic
    select
        e.id as embedding_id,
        (e.embedding_half <#> p_half) + 1 as half_distance
    from rag.embeddings as e
    where
        e.embedding_key = rag.embedding_key(p_provider, p_model, p_dim)
        and (
            p_vault is null
            or e.scope = p_vault
            or (
                e.scope is null
                and exists (
                    select 1
                    from rag.chunks as c
                    inner join rag.documents as d on c.document_id = d.id
                    where c.id = e.chunk_id and d.vault_path = p_vault
                )
            )
        )
        and (p_bound is null or (e.embedding_half <#> p_half) + 1 <= p_bound)
    order by (e.embedding_half <#> p_half) + 1
    limit p_limit;
end;

comment on function rag.scan_halves(
    public.halfvec, text, text, integer, text, double precision, integer
) is
'Stage one of the exact scan: embeddings of one configuration, and of one vault if given, by their
distance in half precision, nearest first, none farther than p_bound. Inlined where the vector is a
value, so that the plan shows scan and filter. The + 1 turns a negative inner product into a
distance, and keeps an approximate index from serving the order. In psql:
select embedding_half as q from rag.embeddings limit 1 \gset
explain (analyze, buffers)
select * from rag.scan_halves(:''q'', ''fake'', ''fake-lexical-v1'', 1024, p_limit => 50);';

create or replace function rag.scan_filtered_halves(
    p_half public.halfvec,
    p_provider text,
    p_model text,
    p_dim integer,
    p_filter jsonb,
    p_bound double precision default null,
    p_limit integer default null
)
    returns table (embedding_id bigint, half_distance double precision)
    language sql
    stable
    parallel safe
begin atomic
    select
        e.id as embedding_id,
        (e.embedding_half <#> p_half) + 1 as half_distance
    from rag.embeddings as e
    where
        e.chunk_id = any(array(select f.chunk_id from rag.filtered_chunks(p_filter) as f))
        and e.embedding_key = rag.embedding_key(p_provider, p_model, p_dim)
        and (p_bound is null or (e.embedding_half <#> p_half) + 1 <= p_bound)
    order by (e.embedding_half <#> p_half) + 1
    limit p_limit;
end;

comment on function rag.scan_filtered_halves(
    public.halfvec, text, text, integer, jsonb, double precision, integer
) is
'Like rag.scan_halves, among the chunks that pass a filter: those are looked up first, then their
vectors by chunk_id. (As a join the plan sorts all half vectors before it filters.)';

create or replace function rag.scan_index(
    p_half public.halfvec, p_provider text, p_model text, p_dim integer, p_limit integer
)
    returns table (embedding_id bigint)
    language sql
    stable
    parallel safe
begin atomic
    select e.id as embedding_id
    from rag.embeddings as e
    where
        e.embedding_provider = p_provider
        and e.embedding_model = p_model
        and e.embedding_dim = p_dim
    order by e.embedding_half <#> p_half
    limit p_limit;
end;

comment on function rag.scan_index(public.halfvec, text, text, integer, integer) is
'What the approximate index of a configuration finds nearest; without one, what is nearest by half
vectors. In psql, with enable_seqscan and enable_sort off as rag.list_index_candidates has them:
select embedding_half as q from rag.embeddings limit 1 \gset
explain (analyze, buffers)
select * from rag.scan_index(:''q'', ''fake'', ''fake-lexical-v1'', 1024, 50);';

create or replace function rag.scan_filtered_index(
    p_half public.halfvec,
    p_provider text,
    p_model text,
    p_dim integer,
    p_filter jsonb,
    p_limit integer
)
    returns table (embedding_id bigint)
    language sql
    stable
    parallel safe
begin atomic
    select e.id as embedding_id
    from rag.embeddings as e
    inner join rag.filtered_chunks(p_filter) as f on e.chunk_id = f.chunk_id
    where
        e.embedding_provider = p_provider
        and e.embedding_model = p_model
        and e.embedding_dim = p_dim
    order by e.embedding_half <#> p_half
    limit p_limit;
end;

comment on function rag.scan_filtered_index(
    public.halfvec, text, text, integer, jsonb, integer
) is
'Like rag.scan_index, among the chunks that pass a filter.';

create or replace function rag.list_candidates(
    p_half public.halfvec,
    p_provider text,
    p_model text,
    p_dim integer,
    p_filter jsonb,
    p_bound double precision default null,
    p_limit integer default null
)
    returns table (embedding_id bigint, half_distance double precision)
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
        select s.embedding_id, s.half_distance
        from rag.scan_halves(
            p_half, p_provider, p_model, p_dim, rtrim(p_filter ->> 'vault', '/'), p_bound, p_limit
        ) as s;
    else
        return query
        select s.embedding_id, s.half_distance
        from rag.scan_filtered_halves(
            p_half, p_provider, p_model, p_dim, p_filter, p_bound, p_limit
        ) as s;
    end if;
end;
$$;

comment on function rag.list_candidates(
    public.halfvec, text, text, integer, jsonb, double precision, integer
) is
'Stage one of the exact scan: the p_limit rows nearest by half vectors, or all within p_bound. The
plan is made for the values at hand and without compiling, which costs more than it gives here.';

create or replace function rag.list_index_candidates(
    p_half public.halfvec,
    p_provider text,
    p_model text,
    p_dim integer,
    p_filter jsonb,
    p_limit integer,
    p_ef_search integer
)
    returns table (embedding_id bigint)
    language plpgsql
    stable
    parallel unsafe
    set search_path = pg_catalog, public, pg_temp
    set plan_cache_mode = force_custom_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_sort = off
    set jit = off
as $$
declare
    v_ef_search text := current_setting('hnsw.ef_search', true);
    v_iterative_scan text := current_setting('hnsw.iterative_scan', true);
begin
    -- no SET above for these two: a role that is no superuser may do so only once the library of
    -- the extension is loaded
    perform set_config(
        'hnsw.ef_search', greatest(p_ef_search, coalesce(v_ef_search, '40')::integer)::text, true
    );
    perform set_config('hnsw.iterative_scan', 'relaxed_order', true);
    if p_filter = '{}' then
        return query
        select s.embedding_id
        from rag.scan_index(p_half, p_provider, p_model, p_dim, p_limit) as s;
    else
        return query
        select s.embedding_id
        from rag.scan_filtered_index(p_half, p_provider, p_model, p_dim, p_filter, p_limit) as s;
    end if;
    perform set_config('hnsw.ef_search', coalesce(v_ef_search, '40'), true);
    perform set_config('hnsw.iterative_scan', coalesce(v_iterative_scan, 'off'), true);
end;
$$;

comment on function rag.list_index_candidates(
    public.halfvec, text, text, integer, jsonb, integer, integer
) is
'What the approximate index finds nearest, keeping p_ef_search rows in view as it walks its graph
(or hnsw.ef_search, if that is set to more), and going on while the filter leaves too few.';

create or replace function rag.vector_index_name(p_provider text, p_model text, p_dim integer)
    returns text
    language sql
    immutable
    parallel safe
return 'idx_embeddings_hnsw_' || to_hex(rag.embedding_key(p_provider, p_model, p_dim));

comment on function rag.vector_index_name(text, text, integer) is
'Name of the approximate index of an embedding configuration, which `rag db index create` makes.
Another name is not used by a search.';

create or replace function rag.find_vector_index(p_provider text, p_model text, p_dim integer)
    returns table (
        index_name text, is_valid boolean, indexed_rows bigint, size_bytes bigint
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        c.relname::text as index_name,
        i.indisvalid as is_valid,
        greatest(c.reltuples, 0)::bigint as indexed_rows,
        pg_relation_size(c.oid) as size_bytes
    from pg_catalog.pg_class as c
    inner join pg_catalog.pg_index as i on c.oid = i.indexrelid
    inner join pg_catalog.pg_am as a on c.relam = a.oid
    where
        a.amname = 'hnsw'
        and c.relnamespace = 'rag'::regnamespace
        and c.relname = rag.vector_index_name(p_provider, p_model, p_dim);
end;

comment on function rag.find_vector_index(text, text, integer) is
'The approximate index of an embedding configuration, no row if there is none: whether its build is
complete, about how many rows it holds (as of the last vacuum or analyze) and its size.';

create or replace function rag.choose_scan(
    p_provider text, p_model text, p_dim integer, p_filter jsonb
)
    returns table (scan text, reason text)
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
declare
    v_fewest constant bigint := 10000;  -- an exact scan of fewer rows takes some 10 ms
    v_smallest_share constant float8 := 0.1;  -- below, the index visits too many in vain
    v_sample constant integer := 300;
    v_share float8 := 1;
    v_valid boolean;
    v_rows bigint;
begin
    select i.is_valid, i.indexed_rows into v_valid, v_rows
    from rag.find_vector_index(p_provider, p_model, p_dim) as i;
    if not found then
        return query select 'exact', 'there is no approximate index';
        return;
    elsif not v_valid then
        return query select 'exact', 'the approximate index is not complete';
        return;
    end if;
    if p_filter <> '{}' then
        select count(f.chunk_id)::float8 / greatest(count(*), 1) into v_share
        from (
            select c.id
            from rag.chunks as c tablesample system (
                (
                    select least(100, 100.0 * v_sample / greatest(r.reltuples, 1))
                    from pg_class as r
                    where r.oid = 'rag.chunks'::regclass
                )
            ) repeatable (0)
            limit 2 * v_sample
        ) as c
        left join lateral rag.filtered_chunks(p_filter) as f on f.chunk_id = c.id;
    end if;
    if v_rows * v_share < v_fewest or v_share < v_smallest_share then
        return query select 'exact', format('about %s vectors pass', round(v_rows * v_share));
    else
        return query select 'index', format('about %s vectors pass', round(v_rows * v_share));
    end if;
end;
$$;

comment on function rag.choose_scan(text, text, integer, jsonb) is
'Which way a search goes, and why: index where there is one and about 10000 vectors or more, and a
tenth of all, pass the filter (judged by a sample of 300 chunks, always the same while the table does
not change); exact otherwise.';

create or replace function rag.compare_embeddings(
    p_ids bigint[], p_embedding public.vector, p_provider text, p_model text, p_dim integer,
    p_filter jsonb
)
    returns table (chunk_id bigint, distance double precision)
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
    select r.chunk_id, r.distance
    from (
        select e.chunk_id, e.embedding <=> p_embedding as distance
        from rag.embeddings as e
        where e.id = any(p_ids)
            and e.embedding_provider is not distinct from p_provider
            and e.embedding_model is not distinct from p_model
            and e.embedding_dim is not distinct from p_dim
        union all
        select e.chunk_id, e.embedding <=> p_embedding as distance
        from rag.embeddings as e
        where e.embedding_provider = p_provider
            and e.embedding_model = p_model
            and e.embedding_dim = p_dim
            and e.embedding_half is null
            and e.id <> all(p_ids)
            and (
                p_filter = '{}'
                or e.chunk_id in (select f.chunk_id from rag.filtered_chunks(p_filter) as f)
            )
    ) as r
    where r.distance <> 'NaN';
end;
$$;

comment on function rag.compare_embeddings(
    bigint[], public.vector, text, text, integer, jsonb
) is
'Stage two: the true cosine distances of the given embeddings, and of those that have no half
vector. A zero vector has no distance and is left out. By the primary key alone, whatever was planned
while the table was empty.';

create or replace function rag.find_nearest(
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_top_k integer,
    p_filter jsonb default '{}',
    p_scan text default null
)
    returns table (
        chunk_id bigint,
        distance double precision,
        scan text,
        reason text,
        candidates integer,
        compared integer,
        proven_at_once boolean
    )
    language plpgsql
    stable
    parallel unsafe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_half constant halfvec := rag.half_vector(p_embedding);
    v_wanted constant integer := 3 * p_top_k + 30;
    v_scan text;
    v_reason text;
    v_ids bigint[];
    v_last double precision;  -- half distance of the last candidate; null: there are no more rows
    v_chunks bigint[];
    v_distances double precision[];
    v_kth double precision;
    v_proven boolean;
    v_candidates integer;
begin
    if vector_norm(p_embedding) = 0 then
        return query select
            null::bigint, null::float8, 'exact', 'a zero vector is near to nothing', 0, 0, true;
        return;
    end if;
    if p_scan is not null then
        v_scan := p_scan;
        v_reason := 'asked for';
    elsif v_half is null then
        v_scan := 'exact';
        v_reason := 'the vector of the question is out of all proportion: all are compared in full';
    else
        select c.scan, c.reason into v_scan, v_reason
        from rag.choose_scan(p_provider, p_model, p_dim, p_filter) as c;
    end if;

    if v_scan = 'index' then
        v_ids := array(
            select c.embedding_id
            from rag.list_index_candidates(
                v_half, p_provider, p_model, p_dim, p_filter, p_top_k + 10, 100 + 6 * p_top_k
            ) as c
        );
        if cardinality(v_ids) < p_top_k then
            v_scan := 'exact';
            v_reason := format('the approximate index found %s of %s', cardinality(v_ids), p_top_k);
        end if;
    end if;
    if v_scan = 'exact' then
        select
            coalesce(array_agg(c.embedding_id), '{}'),
            case when count(*) >= v_wanted then max(c.half_distance) end
        into v_ids, v_last
        from rag.list_candidates(
            v_half, p_provider, p_model, p_dim, p_filter, null,
            case when v_half is not null then v_wanted end
        ) as c;
    end if;
    v_candidates := cardinality(v_ids);

    select array_agg(c.chunk_id order by c.distance), array_agg(c.distance order by c.distance)
    into v_chunks, v_distances
    from rag.compare_embeddings(v_ids, p_embedding, p_provider, p_model, p_dim, p_filter) as c;
    v_kth := v_distances[p_top_k];

    if v_scan = 'exact' then
        v_proven := v_last is null or coalesce(v_kth < v_last - rag.half_error(), false);
        if not v_proven then
            select coalesce(array_agg(c.embedding_id), '{}') into v_ids
            from rag.list_candidates(
                v_half, p_provider, p_model, p_dim, p_filter, v_kth + rag.half_error()
            ) as c;
            select
                array_agg(c.chunk_id order by c.distance),
                array_agg(c.distance order by c.distance)
            into v_chunks, v_distances
            from rag.compare_embeddings(
                v_ids, p_embedding, p_provider, p_model, p_dim, p_filter
            ) as c;
        end if;
    end if;

    -- at least one row, which tells the way even where nothing was found
    return query
    select n.chunk_id, n.distance, v_scan, v_reason, v_candidates, cardinality(v_ids), v_proven
    from (select 1) as one
    left join unnest(v_chunks, v_distances) as n (chunk_id, distance)
        on n.distance <= v_distances[p_top_k] or v_distances[p_top_k] is null;
end;
$$;

comment on function rag.find_nearest(
    public.vector, text, text, integer, integer, jsonb, text
) is
'The p_top_k nearest chunks and all that tie with the last, in no order, and how they were found:
scan (exact or index), reason, how many candidates stage one gave, how many vectors were compared in
full, and whether the first candidates proved the answer (null for an index, which proves nothing).
One row with a null chunk where nothing was found. p_scan asks for one way; left out,
rag.choose_scan decides. Checks nothing: callers do.';
