-- Checks that the other files use.

create or replace function rag.check_top_k(p_top_k integer)
    returns integer
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    if p_top_k is null or p_top_k not between 1 and 20 then
        raise exception 'top_k must be between 1 and 20, got %', coalesce(p_top_k::text, 'null')
            using errcode = 'RG001', hint = 'Ask for 1 to 20 chunks; 5 is the default.';
    end if;
    return p_top_k;
end;
$$;

comment on function rag.check_top_k(integer) is
'The same number where it is allowed (1 to 20). Raises RG001 otherwise.';

create or replace function rag.check_dim(p_dim integer, p_embedding public.vector default null)
    returns integer
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    if p_dim is distinct from 1024 then
        raise exception 'embedding dimension must be 1024, got %', coalesce(p_dim::text, 'null')
            using errcode = 'RG004', hint = 'Set EMBEDDING_DIM=1024.';
    end if;
    if p_embedding is not null and vector_dims(p_embedding) <> p_dim then
        raise exception 'the vector has % dimensions, expected %', vector_dims(p_embedding), p_dim
            using errcode = 'RG004', hint = 'Use a model that gives 1024 dimensions.';
    end if;
    return p_dim;
end;
$$;

comment on function rag.check_dim(integer, public.vector) is
'The same dimension where it is 1024 and the vector, if given, has as many. Raises RG004 if not.';

create or replace function rag.check_indexed(p_provider text, p_model text, p_dim integer)
    returns boolean
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
begin
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
    return true;
end;
$$;

comment on function rag.check_indexed(text, text, integer) is
'True where an embedding configuration has vectors. Raises RG003 otherwise.';
