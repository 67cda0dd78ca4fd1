-- What the index holds.

create or replace function rag.index_status(p_provider text, p_model text, p_dim integer)
    returns table (
        documents bigint,
        chunks bigint,
        embeddings_current_config bigint,
        retrieval_ready boolean
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        (select count(*) from rag.documents as d) as documents,
        (select count(*) from rag.chunks as c) as chunks,
        n.embeddings as embeddings_current_config,
        n.embeddings > 0 as retrieval_ready
    from (
        select count(*) as embeddings
        from rag.embeddings as e
        where
            e.embedding_provider = p_provider
            and e.embedding_model = p_model
            and e.embedding_dim = p_dim
    ) as n;
end;

comment on function rag.index_status(text, text, integer) is
'How many documents and chunks are stored, how many embeddings the given configuration has, and
whether it can be searched.
Example: select * from rag.index_status(''fake'', ''fake-lexical-v1'', 1024);';

create or replace function rag.find_unknown_sources(
    p_sources text[], p_provider text, p_model text, p_dim integer
)
    returns table (source text)
    language sql
    stable
    parallel safe
begin atomic
    select s.source
    from unnest(p_sources) as s (source)
    where not exists (
        select 1
        from rag.embeddings as e
        join rag.chunks as c on e.chunk_id = c.id
        where
            c.relative_path = s.source
            and e.embedding_provider = p_provider
            and e.embedding_model = p_model
            and e.embedding_dim = p_dim
    )
    group by s.source
    order by s.source collate "C";
end;

comment on function rag.find_unknown_sources(text[], text, text, integer) is
'Those of p_sources, paths as citations have them, that a configuration finds in no vault: the note
is not stored, is empty, or has no embeddings yet. Example:
select * from rag.find_unknown_sources(array[''a.md''], ''fake'', ''fake-lexical-v1'', 1024);';
