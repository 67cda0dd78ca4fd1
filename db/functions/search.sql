-- Search by vectors: as a function of its own, as one plain statement, and how it went.

create or replace function rag.similarity_score(p_distance double precision)
    returns double precision
    language sql
    immutable
    parallel safe
return case
    when p_distance = 'NaN' then 0
    when p_distance is not null then greatest(0, least(1, 1 - p_distance))
end;

comment on function rag.similarity_score(double precision) is
'Cosine distance turned into a score in [0, 1]: a negative similarity, and the NaN of a zero vector,
become 0. Null stays null.';

create or replace function rag.check_search(
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_top_k integer,
    p_filter jsonb
)
    returns boolean
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    perform rag.check_top_k(p_top_k);
    perform rag.check_dim(p_dim, p_embedding);
    perform rag.check_filter(p_filter);
    if p_embedding is null then
        raise exception 'the vector of the question is null'
            using errcode = 'RG001', hint = 'Embed the question first.';
    end if;
    return rag.check_indexed(p_provider, p_model, p_dim);
end;
$$;

comment on function rag.check_search(public.vector, text, text, integer, integer, jsonb) is
'True where a search with these arguments makes sense. Raises RG001 (top_k, filter, no vector),
RG003 (nothing indexed), RG004 (dimension).';

create or replace function rag.search_chunks(
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_top_k integer default 5,
    p_filter jsonb default '{}'
)
    returns table (
        chunk_id bigint,
        vault_path text,
        source text,
        heading_path text[],
        chunk_index integer,
        content text,
        content_hash text,
        metadata jsonb,
        score double precision
    )
    language sql
    stable
    parallel unsafe
begin atomic
    select
        s.chunk_id,
        s.vault_path,
        s.source,
        s.heading_path,
        s.chunk_index,
        s.content,
        s.content_hash,
        s.metadata,
        s.score
    from rag.retrieve(
        null, p_embedding, p_provider, p_model, p_dim, p_top_k, p_filter, 'vector'
    ) as s;
end;

comment on function rag.search_chunks(public.vector, text, text, integer, integer, jsonb) is
'The p_top_k chunks nearest to a vector among those embedded by one provider, model and dim, best
first; exact, unless `rag db index create` made an approximate index and it serves here (see
rag.explain_search). Ties are broken by source, heading_path, chunk_index, vault_path (collation
"C"). A zero vector finds nothing. p_filter: see rag.check_filter; it is applied in the scan, before
the limit. Raises as rag.check_search.
Example in psql: select embedding as q from rag.embeddings limit 1 \gset
select source, heading_path, score
from rag.search_chunks(:''q'', ''fake'', ''fake-lexical-v1'', 1024);';

create or replace function rag.search_chunks_plain(
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_top_k integer default 5,
    p_filter jsonb default '{}'
)
    returns table (
        chunk_id bigint,
        vault_path text,
        source text,
        heading_path text[],
        chunk_index integer,
        content text,
        content_hash text,
        metadata jsonb,
        score double precision
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        c.id as chunk_id,
        d.vault_path,
        c.relative_path as source,
        c.heading_path,
        c.chunk_index,
        c.content,
        c.content_hash,
        c.metadata,
        rag.similarity_score(n.distance) as score
    from (
        select
            e.chunk_id,
            (e.embedding <=> p_embedding) + 0 as distance
        from rag.embeddings as e
        where
            e.embedding_provider = p_provider
            and e.embedding_model = p_model
            and e.embedding_dim = p_dim
            and (
                p_filter = '{}'
                or e.chunk_id in (select f.chunk_id from rag.filtered_chunks(p_filter) as f)
            )
    ) as n
    inner join rag.chunks as c on n.chunk_id = c.id
    inner join rag.documents as d on c.document_id = d.id
    where
        (select rag.check_search(p_embedding, p_provider, p_model, p_dim, p_top_k, p_filter))
        and coalesce(n.distance, 0) <> 'NaN'
    order by
        n.distance,
        c.relative_path collate "C",
        c.heading_path collate "C",
        c.chunk_index,
        d.vault_path collate "C"
    limit p_top_k;
end;

comment on function rag.search_chunks_plain(
    public.vector, text, text, integer, integer, jsonb
) is
'What rag.search_chunks has to return, as one statement that compares every vector: slower, always
exact, for comparison. The + 0 keeps an index on the vectors from serving the order. Raises as
rag.check_search.';

create or replace function rag.explain_search(
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_top_k integer default 5,
    p_filter jsonb default '{}'
)
    returns table (
        scan text,
        reason text,
        rows_scanned bigint,
        candidates integer,
        compared integer,
        proven_at_once boolean,
        found integer
    )
    language plpgsql
    stable
    parallel unsafe
    set search_path = pg_catalog, public, pg_temp
    set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    perform rag.check_search(p_embedding, p_provider, p_model, p_dim, p_top_k, p_filter);
    return query
    select
        n.scan,
        n.reason,
        case
            when n.scan = 'exact' and n.candidates = 0 then 0
            when n.scan = 'exact' then (
                select count(*)
                from rag.list_candidates(
                    rag.half_vector(p_embedding), p_provider, p_model, p_dim, p_filter
                )
            )
        end,
        n.candidates,
        n.compared,
        n.proven_at_once,
        least(count(n.chunk_id), p_top_k)::integer
    from rag.find_nearest(p_embedding, p_provider, p_model, p_dim, p_top_k, p_filter) as n
    group by n.scan, n.reason, n.candidates, n.compared, n.proven_at_once;
end;
$$;

comment on function rag.explain_search(public.vector, text, text, integer, integer, jsonb) is
'How rag.search_chunks goes with the same arguments: scan (exact or index) and the reason for it,
rows_scanned (half vectors read by the exact scan; null for an index, which does not count them),
candidates of stage one, vectors compared in full, whether the first candidates proved the answer
(false: every row within rag.half_error() was compared; null for an index, which proves nothing),
chunks found. Runs the search to tell. Raises as rag.check_search.
Example in psql: select embedding as q from rag.embeddings limit 1 \gset
select * from rag.explain_search(:''q'', ''fake'', ''fake-lexical-v1'', 1024);';
