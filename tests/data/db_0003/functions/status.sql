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
