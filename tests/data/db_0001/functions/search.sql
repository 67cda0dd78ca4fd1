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

create or replace function rag.nearest_filtered_embeddings(
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_limit integer,
    p_vault text default null,
    p_path_prefix text default null,
    p_any_tag text[] default null,
    p_all_tags text[] default null,
    p_updated_after timestamptz default null
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
    join rag.chunks as c on e.chunk_id = c.id
    join rag.documents as d on c.document_id = d.id
    where
        e.embedding_provider = p_provider
        and e.embedding_model = p_model
        and e.embedding_dim = p_dim
        and (p_vault is null or d.vault_path = p_vault)
        and (
            p_path_prefix is null
            or c.relative_path = p_path_prefix
            or starts_with(c.relative_path, p_path_prefix || '/')
        )
        and (p_updated_after is null or d.updated_at > p_updated_after)
        and (
            p_any_tag is null
            or exists (
                select 1
                from unnest(c.tags) as t (tag)
                cross join unnest(p_any_tag) as w (tag)
                where lower(t.tag) = lower(w.tag) or starts_with(lower(t.tag), lower(w.tag) || '/')
            )
        )
        and (
            p_all_tags is null
            or not exists (
                select 1
                from unnest(p_all_tags) as w (tag)
                where not exists (
                    select 1
                    from unnest(c.tags) as t (tag)
                    where lower(t.tag) = lower(w.tag)
                        or starts_with(lower(t.tag), lower(w.tag) || '/')
                )
            )
        )
    order by e.embedding <=> p_embedding
    fetch first (p_limit) rows with ties;
end;

comment on function rag.nearest_filtered_embeddings(
    public.vector, text, text, integer, integer, text, text, text[], text[], timestamptz
) is
'Like rag.nearest_embeddings, among the chunks that pass a filter; the filter is applied before the
limit. p_vault: the vault''s path; p_path_prefix: a folder or file below it, literal, at slash
borders; p_any_tag, p_all_tags: tags without #, upper and lower case alike, a tag takes in those
below it (a: a/b); p_updated_after: stored or moved after this time. Null: no such condition.';

create or replace function rag.check_filter(p_filter jsonb)
    returns jsonb
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_key text;
    v_value jsonb;
    v_hint constant text := 'Example: {"vault": "/srv/notes", "path_prefix": "runbooks",'
        ' "tags": {"any": ["p1"], "all": ["ops"]}, "updated_after": "2026-01-31T00:00:00Z"}';
begin
    if p_filter is null or jsonb_typeof(p_filter) <> 'object' then
        raise exception 'filter must be a JSON object, got %', coalesce(p_filter::text, 'null')
            using errcode = 'RG001', hint = 'Use ''{}'' for no filter.';
    end if;
    for v_key, v_value in select e.key, e.value from jsonb_each(p_filter) as e order by e.key loop
        if v_key in ('vault', 'path_prefix', 'updated_after') then
            if jsonb_typeof(v_value) <> 'string' or trim(p_filter ->> v_key, ' /') = '' then
                raise exception 'filter.% must be a text that is not empty, got %', v_key, v_value
                    using errcode = 'RG001', hint = v_hint;
            end if;
        elsif v_key <> 'tags' then
            raise exception 'filter has an unknown key: %', v_key
                using errcode = 'RG001', hint = v_hint;
        elsif jsonb_typeof(v_value) <> 'object' or v_value = '{}' or exists (
            select 1
            from jsonb_each(v_value) as t
            where t.key not in ('any', 'all')
                or jsonb_typeof(t.value) <> 'array'
                or t.value = '[]'
                or exists (
                    select 1 from jsonb_array_elements(t.value) as w (tag)
                    where jsonb_typeof(w.tag) <> 'string' or trim(w.tag #>> '{}', ' #/') = ''
                )
        ) then
            raise exception 'filter.tags must hold a list of tags under any or all, got %', v_value
                using errcode = 'RG001', hint = v_hint;
        end if;
    end loop;
    if p_filter ? 'updated_after' then
        -- without a zone the answer would depend on the session
        if p_filter ->> 'updated_after' !~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)$' then
            raise exception 'filter.updated_after must be a time with a zone, got %',
                p_filter -> 'updated_after'
                using errcode = 'RG001', hint = v_hint;
        end if;
        perform (p_filter ->> 'updated_after')::timestamptz;
    end if;
    return p_filter;
end;
$$;

comment on function rag.check_filter(jsonb) is
'The same filter where it is a JSON object of vault, path_prefix, tags (any, all) and updated_after,
all optional. Raises RG001 otherwise, and for a time that does not exist 22008.
Example: select rag.check_filter(''{"path_prefix": "runbooks", "tags": {"any": ["p1"]}}'');';

create or replace function rag.filter_tags(p_filter jsonb, p_which text)
    returns text[]
    language sql
    immutable
    parallel safe
begin atomic
    select array_agg(trim(normalize(w.tag, nfc), ' #/'))
    from jsonb_array_elements_text(p_filter -> 'tags' -> p_which) as w (tag);
end;

comment on function rag.filter_tags(jsonb, text) is
'The tags of a filter under any or all, without # and slashes at the ends; null where it has none.';

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
    with n as (
        select f.chunk_id, f.distance
        from rag.nearest_filtered_embeddings(
            p_embedding, p_provider, p_model, p_dim, p_top_k,
            rtrim(p_filter ->> 'vault', '/'),
            trim(
                regexp_replace(normalize(p_filter ->> 'path_prefix', nfc), '^(\./)+', ''), '/'
            ),
            rag.filter_tags(p_filter, 'any'),
            rag.filter_tags(p_filter, 'all'),
            (p_filter ->> 'updated_after')::timestamptz
        ) as f
        where p_filter <> '{}'
        union all
        select f.chunk_id, f.distance
        from rag.nearest_embeddings(p_embedding, p_provider, p_model, p_dim, p_top_k) as f
        where p_filter = '{}'
    )
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
    from n
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
zero vector finds nothing. p_filter: see rag.check_filter; it is applied in the scan, before the
limit. Raises RG001 (top_k, filter), RG003 (nothing indexed), RG004 (dimension).
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
