-- Retrieval: one function under search, ask and evaluation. Two legs, by vectors and by words, each
-- with its ranks, and their fusion.

create or replace function rag.retrieval_defaults(p_provider text)
    returns table (retrieval text, vector_weight double precision)
    language sql
    immutable
    parallel safe
begin atomic
    select
        case p_provider when 'fake' then 'lexical' else 'hybrid' end as retrieval,
        case p_provider when 'fake' then 0.015 else 0.5 end::double precision as vector_weight;
end;

comment on function rag.retrieval_defaults(text) is
'How chunks are found when RAG_RETRIEVAL is not set, and what share the vectors have in a fusion.
The vectors of the fake provider know no more than words, and those less well than BM25: docs/why.md has
what was measured.';

create or replace function rag.check_retrieval(
    p_retrieval text, p_embedding public.vector, p_provider text
)
    returns text
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_retrieval text := p_retrieval;
begin
    if v_retrieval is null and p_embedding is null then
        return 'lexical';
    end if;
    if v_retrieval is null then
        select d.retrieval into v_retrieval from rag.retrieval_defaults(p_provider) as d;
    end if;
    if v_retrieval not in ('vector', 'lexical', 'hybrid') then
        raise exception 'retrieval must be vector, lexical or hybrid, got %', v_retrieval
            using errcode = 'RG001', hint = 'Leave it out for what suits the provider best.';
    end if;
    if v_retrieval <> 'lexical' and p_embedding is null then
        raise exception 'the vector of the question is null'
            using errcode = 'RG001', hint = 'Embed the question first, or ask for lexical.';
    end if;
    return v_retrieval;
end;
$$;

comment on function rag.check_retrieval(text, public.vector, text) is
'The retrieval that is used: the one asked for, else the provider''s default, or lexical where there
is no vector. Raises RG001 for another one, and where a vector is needed but missing.';

create or replace function rag.is_wordless(p_question text)
    returns boolean
    language sql
    immutable
    parallel safe
begin atomic
    select coalesce(
        bool_and(t.term ~ '^[\u3005\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]$'), true
    )
    from unnest(rag.question_terms(p_question)) as t (term);
end;

comment on function rag.is_wordless(text) is
'Whether a question has no word to search by: none at all, or single CJK characters only. Such a
question is searched by vectors also in lexical retrieval, if there is a vector.
Example: select rag.is_wordless(''猫？'');';

create or replace function rag.rank_chunks(
    p_question text,
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_limit integer,
    p_filter jsonb,
    p_retrieval text
)
    returns table (
        chunk_id bigint,
        similarity double precision,
        scan text,
        vector_rank bigint,
        lexical_rank bigint,
        lexical_score double precision,
        coverage double precision,
        matched_terms text[],
        fused_score double precision,
        place bigint,
        best_similarity double precision,
        best_coverage double precision
    )
    language plpgsql
    stable
    parallel unsafe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    -- not by p_limit, so that confidence does not depend on how many chunks are asked for
    v_depth constant integer := case p_retrieval
        when 'vector' then p_limit
        when 'lexical' then greatest(20, p_limit)
        else greatest(50, p_limit)
    end;
    -- words are kept as pairs of characters: single ones, and what is no word, are left to the vectors
    v_wordless constant boolean :=
        p_embedding is not null and p_retrieval <> 'vector' and rag.is_wordless(p_question);
    v_constant constant double precision := 60;
    v_vector_weight double precision := 1;
    v_lexical_weight double precision := 1;
begin
    if p_retrieval = 'hybrid' then
        select d.vector_weight, 1 - d.vector_weight into v_vector_weight, v_lexical_weight
        from rag.retrieval_defaults(p_provider) as d;
    end if;
    return query
    with
    by_vector as (
        select
            c.id, n.distance, n.scan,
            row_number() over (
                order by n.distance, c.relative_path collate "C", c.heading_path collate "C",
                c.chunk_index, d.vault_path collate "C"
            ) as rank
        from rag.find_nearest(p_embedding, p_provider, p_model, p_dim, v_depth, p_filter) as n
        join rag.chunks as c on c.id = n.chunk_id
        join rag.documents as d on d.id = c.document_id
        where p_retrieval <> 'lexical' or v_wordless
    ),
    by_words as (
        select w.*
        from rag.find_lexical(p_question, v_depth, p_filter) as w
        where p_retrieval <> 'vector'
    ),
    fused as (
        select
            coalesce(v.id, w.chunk_id) as id, v.distance, v.scan, v.rank as vector_rank,
            w.lexical_rank, w.lexical_score, w.coverage, w.matched_terms,
            coalesce(v_vector_weight / (v_constant + v.rank), 0)
            + coalesce(v_lexical_weight / (v_constant + w.lexical_rank), 0) as score
        from (select v.* from by_vector as v where v.rank <= v_depth) as v
        full join by_words as w on w.chunk_id = v.id
    ),
    placed as (
        select
            f.*,
            row_number() over (
                order by f.score desc, f.lexical_rank, f.vector_rank
            ) as place
        from fused as f
    ),
    compared as (
        select
            f.*,
            rag.similarity_score(
                case
                    when f.distance is not null or p_embedding is null then f.distance
                    else (
                        select coalesce(min(e.embedding <=> p_embedding), 1)
                        from rag.embeddings as e
                        where e.chunk_id = f.id
                            and e.embedding_provider = p_provider
                            and e.embedding_model = p_model
                            and e.embedding_dim = p_dim
                    )
                end
            ) as similarity
        from placed as f
        where f.place <= greatest(20, p_limit) or f.distance is not null
    ),
    judged as (
        select
            c.*,
            max(c.similarity) filter (where c.place <= 20 or c.distance is not null) over ()
                as best_similarity,
            (
                select
                    case
                        when p_retrieval <> 'vector' and not v_wordless
                            then coalesce(max(w.coverage), 0)
                    end
                from by_words as w
                where w.lexical_rank <= 20
            ) as best_coverage
        from compared as c
    )
    select
        f.id, f.similarity, coalesce(f.scan, 'exact'), f.vector_rank, f.lexical_rank,
        f.lexical_score, f.coverage, f.matched_terms, f.score, f.place,
        f.best_similarity, f.best_coverage
    from judged as f
    where f.place <= p_limit;
end;
$$;

comment on function rag.rank_chunks(
    text, public.vector, text, text, integer, integer, jsonb, text
) is
'The p_limit best chunks for a question by one way of retrieval, in no order: place (from 1), ranks
in both legs (null: not found there), similarity, lexical score and coverage, and the fused score,
sum of weight / (60 + rank) over the legs (Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion",
SIGIR 2009) with the weights of rag.retrieval_defaults. In vector and lexical retrieval that is the
order of the one leg. The same in all rows, whatever p_limit: best_similarity, of the 20 best chunks
and, where vectors are searched, of the nearest vector; best_coverage, of the 20 that fit the words
best, null for vector and for a question without words. Checks nothing: callers do.';

create or replace function rag.list_duplicates(p_chunk_ids bigint[])
    returns table (chunk_id bigint, duplicate_of bigint)
    language sql
    stable
    parallel safe
begin atomic
    with
    listed as materialized (
        select
            i.chunk_id,
            i.place,
            c.content,
            t.terms,
            trim(regexp_replace(c.content, '[^0-9]+', ' ', 'g')) as numbers
        from unnest(p_chunk_ids) with ordinality as i (chunk_id, place)
        inner join rag.chunks as c on i.chunk_id = c.id
        left join rag.chunk_terms as t on i.chunk_id = t.chunk_id
    )
    select distinct on (l.place)
        l.chunk_id,
        e.chunk_id as duplicate_of
    from listed as l
    inner join listed as e
        on
            l.place > e.place
            and (
                l.content = e.content
                or (l.numbers = e.numbers and (e.terms <=> l.terms) <= 0.05)
            )
    order by l.place, e.place;
end;

comment on function rag.list_duplicates(bigint[]) is
'Those of the chunks that say the same as one before them in the list, or nearly the same (terms at
a cosine distance of 0.05 or less) with the same numbers, with the first such one.
Example: select * from rag.list_duplicates(array[3, 1, 2]);';

create or replace function rag.retrieve(
    p_question text,
    p_embedding public.vector default null,
    p_provider text default null,
    p_model text default null,
    p_dim integer default 1024,
    p_top_k integer default 5,
    p_filter jsonb default '{}',
    p_retrieval text default null
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
        score double precision,
        scan text,
        vector_rank integer,
        lexical_rank integer,
        lexical_score double precision,
        coverage double precision,
        matched_terms text[],
        fused_score double precision,
        duplicate_of bigint,
        best_similarity double precision,
        best_coverage double precision,
        cjk_share double precision,
        confidence double precision,
        calibration text
    )
    language plpgsql
    stable
    parallel unsafe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_retrieval constant text := rag.check_retrieval(p_retrieval, p_embedding, p_provider);
begin
    perform rag.check_top_k(p_top_k);
    perform rag.check_dim(p_dim, p_embedding);
    perform rag.check_filter(p_filter);
    if p_question is null and v_retrieval <> 'vector' then
        raise exception 'the question is null'
            using errcode = 'RG001', hint = 'Ask something, or ask for vector with its vector.';
    end if;
    if p_embedding is not null then
        perform rag.check_indexed(p_provider, p_model, p_dim);
    end if;
    return query
    with
    ranked as materialized (
        select r.*
        from rag.rank_chunks(
            p_question, p_embedding, p_provider, p_model, p_dim, p_top_k, p_filter, v_retrieval
        ) as r
    ),
    duplicates as materialized (
        select u.*
        from rag.list_duplicates(array(select r.chunk_id from ranked as r order by r.place)) as u
        where v_retrieval <> 'vector'
    ),
    judged as materialized (
        select k.cjk_share, e.confidence, e.calibration
        from (
            select r.best_similarity, r.best_coverage, rag.cjk_share(p_question) as cjk_share
            from ranked as r
            limit 1
        ) as k
        cross join lateral rag.estimate_confidence(
            k.best_similarity, k.best_coverage, k.cjk_share, p_provider, p_model, v_retrieval
        ) as e
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
        r.similarity,
        r.scan,
        r.vector_rank::integer,
        r.lexical_rank::integer,
        r.lexical_score,
        r.coverage,
        r.matched_terms,
        r.fused_score,
        u.duplicate_of,
        r.best_similarity,
        r.best_coverage,
        j.cjk_share,
        j.confidence,
        j.calibration
    from ranked as r
    join rag.chunks as c on c.id = r.chunk_id
    join rag.documents as d on d.id = c.document_id
    left join duplicates as u on u.chunk_id = r.chunk_id
    cross join judged as j
    order by r.place;
end;
$$;

comment on function rag.retrieve(
    text, public.vector, text, text, integer, integer, jsonb, text
) is
'The p_top_k best chunks for a question, best first: what /search and /ask work with. p_retrieval:
vector (nearest vectors, as rag.search_chunks), lexical (BM25 on words) or hybrid (both, fused by
rank); left out, the provider''s default (rag.retrieval_defaults), without a vector lexical.
score is the similarity to the question''s vector in [0, 1] (null without one, 0 where the chunk has
no vector); vector_rank and lexical_rank are null where a leg did not find the chunk among its best
(a chunk without any of the words is never found by them); coverage is the lexical score as a share
of the highest that the question could reach; duplicate_of names an earlier hit of the same content,
or of nearly the same with the same numbers. The same in all rows, whatever p_top_k, are what the
decision to answer goes by (rag.decide_mode): best_similarity (of the 20 best chunks and, where vectors
are searched, of the nearest vector), best_coverage (null for vector), cjk_share, and the confidence
that rag.estimate_confidence makes of them, with the calibration (null: it is the similarity).
Ties within a leg are broken by source, heading_path, chunk_index, vault_path (collation "C"), ties of
the fusion by the words. A question without words, or of single CJK characters, is searched by vectors
also in lexical, because words are kept as pairs of them.
Raises RG001 (top_k, filter, retrieval, no question, no vector), RG003 (nothing indexed), RG004 (dimension).
Example in psql: select source, heading_path, lexical_score, matched_terms
from rag.retrieve(''重置密码'');';

create or replace function rag.list_neighbours(p_chunk_ids bigint[])
    returns table (
        chunk_id bigint, previous_id bigint, previous text, next_id bigint, next text
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        c.id as chunk_id,
        p.id as previous_id,
        p.content as previous,
        n.id as next_id,
        n.content as next
    from rag.chunks as c
    left join rag.chunks as p
        on
            c.document_id = p.document_id
            and c.chunk_index - 1 = p.chunk_index
            and c.heading_path = p.heading_path
            and p.id <> all(p_chunk_ids)
            and (c.metadata -> 'page') is not distinct from (p.metadata -> 'page')
    left join rag.chunks as n
        on
            c.document_id = n.document_id
            and c.chunk_index + 1 = n.chunk_index
            and c.heading_path = n.heading_path
            and n.id <> all(p_chunk_ids)
            and (c.metadata -> 'page') is not distinct from (n.metadata -> 'page')
    where c.id = any(p_chunk_ids);
end;

comment on function rag.list_neighbours(bigint[]) is
'The text before and after each of these chunks in its own section, null where the section begins or
ends or where that chunk is one of these itself.';

create or replace function rag.assert_retrieves(
    p_question text, p_path text, p_top_k integer default 5, p_filter jsonb default '{}'
)
    returns integer
    language plpgsql
    stable
    parallel unsafe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_sources text[];
begin
    if p_path is null then
        raise exception 'the path of the document is null'
            using errcode = 'RG001', hint = 'Name it as citations do, below its vault.';
    end if;
    select array_agg(r.source) into v_sources
    from rag.retrieve(p_question, p_top_k => p_top_k, p_filter => p_filter) as r;
    if array_position(v_sources, p_path) is null then
        raise exception '% is not among the best % for: %', p_path, p_top_k, p_question
            using errcode = 'RG005', hint = coalesce(
                'Found instead: ' || array_to_string(v_sources, ', '), 'Nothing was found.'
            );
    end if;
    return array_position(v_sources, p_path);
end;
$$;

comment on function rag.assert_retrieves(text, text, integer, jsonb) is
'The place (from 1) of the first chunk of a document among the p_top_k best that the words of a
question find, for tests of what must be found. Raises RG005 when it is not there, RG001 without a path and as
rag.retrieve does. Example: select rag.assert_retrieves(''重置密码'', ''runbooks/reset.md'');';
