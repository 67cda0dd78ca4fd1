-- Retrieval: nearest vectors, the search that everything calls, and the decision to answer or not.

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

create or replace function rag.nearest_embeddings(
    p_embedding public.vector, p_provider text, p_model text, p_dim integer, p_limit integer
)
    returns table (chunk_id bigint, distance double precision)
    language sql
    stable
    parallel safe
begin atomic
    select
        e.chunk_id,
        e.embedding <=> p_embedding as distance
    from rag.embeddings as e
    where
        e.embedding_provider = p_provider
        and e.embedding_model = p_model
        and e.embedding_dim = p_dim
    order by e.embedding <=> p_embedding
    fetch first (p_limit) rows with ties;
end;

comment on function rag.nearest_embeddings(public.vector, text, text, integer, integer) is
'Nearest vectors of one embedding configuration by exact scan, nearest first, and all that tie with
the last one. A zero vector has the distance NaN and sorts last. Inlined where the vector is a value,
so that the plan shows the scan and the filter (a sub-select as argument stops that). In psql:
select embedding as q from rag.embeddings limit 1 \gset
explain analyze
select * from rag.nearest_embeddings(:''q'', ''fake'', ''fake-lexical-v1'', 1024, 5);';

create or replace function rag.check_filter(p_filter jsonb)
    returns jsonb
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    if p_filter is null or jsonb_typeof(p_filter) <> 'object' then
        raise exception 'filter must be a JSON object, got %', coalesce(p_filter::text, 'null')
            using errcode = 'RG001', hint = 'Use ''{}'' for no filter.';
    end if;
    if p_filter <> '{}' then
        raise exception 'filter has an unknown key: %',
            (select min(k.name) from jsonb_object_keys(p_filter) as k (name))
            using errcode = 'RG001', hint = 'This version knows no filter keys; use ''{}''.';
    end if;
    return p_filter;
end;
$$;

comment on function rag.check_filter(jsonb) is
'The same filter where it is a JSON object with known keys (none yet). Raises RG001 otherwise.';

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
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
begin
    perform rag.check_top_k(p_top_k);
    perform rag.check_dim(p_dim, p_embedding);
    perform rag.check_filter(p_filter);
    if p_embedding is null then
        raise exception 'the vector of the question is null'
            using errcode = 'RG001', hint = 'Embed the question first.';
    end if;
    if not exists (
        select 1
        from rag.embeddings as e
        where e.embedding_provider = p_provider
            and e.embedding_model = p_model
            and e.embedding_dim = p_dim
    ) then
        raise exception 'nothing is indexed for provider %, model %, dim %',
            p_provider, p_model, p_dim
            using errcode = 'RG003', hint = 'Run: rag ingest PATH_OF_THE_VAULT';
    end if;
    return query
    select
        c.id,
        d.vault_path,
        c.relative_path,
        c.heading_path,
        c.chunk_index,
        c.content,
        c.content_hash,
        c.metadata,
        rag.similarity_score(n.distance)
    from rag.nearest_embeddings(p_embedding, p_provider, p_model, p_dim, p_top_k) as n
    join rag.chunks as c on c.id = n.chunk_id
    join rag.documents as d on d.id = c.document_id
    where n.distance <> 'NaN'
    order by
        n.distance,
        c.relative_path collate "C",
        c.heading_path collate "C",
        c.chunk_index,
        d.vault_path collate "C"
    limit p_top_k;
end;
$$;

comment on function rag.search_chunks(public.vector, text, text, integer, integer, jsonb) is
'The p_top_k chunks nearest to a vector among those embedded by one provider, model and dim, best
first; exact. Ties are broken by source, heading_path, chunk_index, vault_path (collation "C"). A
zero vector finds nothing. Raises RG001 (top_k, filter), RG003 (nothing indexed), RG004
(dimension).
Example in psql: select embedding as q from rag.embeddings limit 1 \gset
select source, heading_path, score
from rag.search_chunks(:''q'', ''fake'', ''fake-lexical-v1'', 1024);';

create or replace function rag.decide_mode(
    p_confidence double precision,
    p_threshold double precision,
    p_fallback boolean default false,
    p_fallback_enabled boolean default false
)
    returns table (mode text, reason text)
    language sql
    immutable
    parallel safe
begin atomic
    select
        case
            when nullif(p_confidence, 'NaN') >= p_threshold then 'rag'
            when p_fallback and p_fallback_enabled then 'fallback'
            else 'no_answer'
        end as mode,
        concat(
            case
                when nullif(p_confidence, 'NaN') is null then 'nothing was found'
                else format(
                    'confidence %s is %s the threshold %s',
                    round(p_confidence::numeric, 6),
                    case when p_confidence >= p_threshold then 'not below' else 'below' end,
                    round(p_threshold::numeric, 6)
                )
            end,
            case
                when nullif(p_confidence, 'NaN') >= p_threshold or not p_fallback then ''
                when p_fallback_enabled then '; fallback is asked for and enabled'
                else '; fallback is asked for but disabled globally'
            end
        ) as reason;
end;

comment on function rag.decide_mode(double precision, double precision, boolean, boolean) is
'Whether a question is answered from the knowledge base (rag), refused (no_answer) or passed to the
model''s general knowledge (fallback: asked for and enabled), with the rule that fired in words. A
null confidence says that nothing was found at all. Example:
select * from rag.decide_mode(0.31, 0.20);';
