-- Why a chunk or a note is among the sources of an answer, or why it is not.

create or replace function rag.explain_retrieval(
    p_question text,
    p_embedding public.vector default null,
    p_provider text default null,
    p_model text default null,
    p_dim integer default 1024,
    p_top_k integer default 5,
    p_filter jsonb default '{}',
    p_retrieval text default null,
    p_depth integer default 50
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
        calibration text,
        place integer,
        state text
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
    if p_depth is null or p_depth not between 1 and 50 then
        raise exception 'depth must be between 1 and 50, got %', coalesce(p_depth::text, 'null')
            using errcode = 'RG001', hint = 'Ask for 1 to 50 chunks; 50 is the default.';
    end if;
    return query
    with
    within as materialized (
        select r.*
        from rag.retrieve(
            p_question, p_embedding, p_provider, p_model, p_dim, p_top_k, p_filter, v_retrieval
        ) with ordinality as r (
            chunk_id, vault_path, source, heading_path, chunk_index, content, content_hash,
            metadata, score, scan, vector_rank, lexical_rank, lexical_score, coverage,
            matched_terms, fused_score, duplicate_of, best_similarity, best_coverage, cjk_share,
            confidence, calibration, place
        )
    ),
    further as materialized (
        select
            n.*,
            row_number() over (order by n.place) + (select count(*) from within as w) as number
        from rag.rank_chunks(
            p_question, p_embedding, p_provider, p_model, p_dim, greatest(p_depth, p_top_k),
            p_filter, v_retrieval
        ) as n
        where n.chunk_id not in (select w.chunk_id from within as w)
    ),
    listed as materialized (
        select w.chunk_id, w.place from within as w
        union all
        select f.chunk_id, f.number from further as f where f.number <= greatest(p_depth, p_top_k)
    ),
    duplicates as materialized (
        select u.*
        from rag.list_duplicates(
            array(select l.chunk_id from listed as l order by l.place)
        ) as u
        where v_retrieval <> 'vector'
    ),
    barred as materialized (
        select b.*
        from rag.rank_chunks(
            p_question, p_embedding, p_provider, p_model, p_dim, p_depth, '{}', v_retrieval
        ) as b
        where p_filter <> '{}'
            and b.chunk_id <> all(array(select p.chunk_id from rag.filtered_chunks(p_filter) as p))
    ),
    added as (
        select f.*, f.number as stands, 'beyond_top_k' as state, 1 as part from further as f
        union all
        select b.*, null, null, 'filtered', 2 from barred as b
    ),
    shared as (
        select w.best_similarity, w.best_coverage, w.cjk_share, w.confidence, w.calibration
        from within as w
        limit 1
    ),
    united as (
        select w.*, 'within' as state, 0 as part, w.place as position from within as w
        union all
        select
            a.chunk_id, d.vault_path, c.relative_path, c.heading_path, c.chunk_index, c.content,
            c.content_hash, c.metadata, a.similarity, a.scan, a.vector_rank::integer,
            a.lexical_rank::integer, a.lexical_score, a.coverage, a.matched_terms, a.fused_score,
            u.duplicate_of, s.best_similarity, s.best_coverage, s.cjk_share, s.confidence,
            s.calibration, a.stands, a.state, a.part, a.place
        from added as a
        join rag.chunks as c on c.id = a.chunk_id
        join rag.documents as d on d.id = c.document_id
        left join duplicates as u on u.chunk_id = a.chunk_id and a.state = 'beyond_top_k'
        left join shared as s on true
        where a.stands is null or a.stands <= greatest(p_depth, p_top_k)
    )
    select
        t.chunk_id, t.vault_path, t.source, t.heading_path, t.chunk_index, t.content,
        t.content_hash, t.metadata, t.score, t.scan, t.vector_rank, t.lexical_rank,
        t.lexical_score, t.coverage, t.matched_terms, t.fused_score, t.duplicate_of,
        t.best_similarity, t.best_coverage, t.cjk_share, t.confidence, t.calibration,
        t.place::integer, t.state
    from united as t
    order by t.part, t.position;
end;
$$;

comment on function rag.explain_retrieval(
    text, public.vector, text, text, integer, integer, jsonb, text, integer
) is
'The rows of rag.retrieve with the same arguments and, after them, what did not get so far, down to
the p_depth best (1 to 50): place (from 1) in the ranking, and state: within (a row of rag.retrieve),
beyond_top_k, filtered (would be among the p_depth best without the filter; without a place). What
the decision goes by is the same in all rows, null where rag.retrieve has none; duplicate_of may name
any chunk of a better place. Raises RG001 (depth) and what rag.retrieve raises.
Example in psql: select place, state, source, lexical_score
from rag.explain_retrieval(''重置密码'', p_top_k => 2);';

create or replace function rag.has_heading(
    p_heading_path text[], p_metadata jsonb, p_heading text
)
    returns boolean
    language sql
    immutable
    parallel safe
begin atomic
    with
    paths as (
        select array_agg(lower(trim(normalize(h.heading, nfc)))) as headings
        from unnest(p_heading_path) as h (heading)
        union all
        select (
            select array_agg(lower(trim(normalize(h.heading, nfc))))
            from jsonb_array_elements_text(s.section) as h (heading)
        )
        from jsonb_array_elements(
            case when jsonb_typeof(p_metadata -> 'sections') = 'array'
                then p_metadata -> 'sections' else '[]'
            end
        ) as s (section)
        where jsonb_typeof(s.section) = 'array'
    )
    select coalesce(bool_or(
        lower(trim(normalize(p_heading, nfc))) = any(p.headings)
        or lower(trim(normalize(p_heading, nfc), ' #')) = any(p.headings)
        or (
            trim(p_heading, ' #') <> ''
            and array(
                select lower(trim(normalize(w.part, nfc)))
                from string_to_table(p_heading, '#') as w (part)
                where trim(w.part) <> ''
            ) <@ p.headings
        )
    ), false)
    from paths as p;
end;

comment on function rag.has_heading(text[], jsonb, text) is
'Whether a chunk stands below a heading: one of its heading path, or of the sections that were
merged into it. Case does not count; Outer#Inner asks for both.
Example: select rag.has_heading(array[''Runbook'', ''Steps''], ''{}'', ''steps'');';

create or replace function rag.list_headings(p_heading_path text[], p_metadata jsonb)
    returns table (heading text, depth bigint)
    language sql
    immutable
    parallel safe
begin atomic
    select
        l.heading,
        min(l.depth) as depth
    from (
        select
            h.heading,
            h.depth
        from unnest(p_heading_path) with ordinality as h (heading, depth)
        union all
        select
            h.heading,
            h.depth
        from jsonb_array_elements(
            case when jsonb_typeof(p_metadata -> 'sections') = 'array'
                then p_metadata -> 'sections' else '[]'
            end
        ) as s (section)
        cross join jsonb_array_elements_text(s.section) with ordinality as h (heading, depth)
    ) as l
    group by l.heading;
end;

comment on function rag.list_headings(text[], jsonb) is
'The headings that a chunk stands below, its own among them, and those of the sections that were
merged into it, with their depth from 1.
Example: select * from rag.list_headings(array[''Runbook'', ''Steps''], ''{}'');';

create or replace function rag.match_path(p_path text, p_relative_path text, p_file_path text)
    returns integer
    language sql
    immutable
    parallel safe
return case
    when p_path = '' then null
    when p_path = p_relative_path then 1
    when p_path = p_file_path then 2
    when p_relative_path = p_path || '.md' or p_file_path = p_path || '.md' then 3
    -- the rest holds for none that does not end so
    when right(lower(p_file_path), length(lower(p_path))) <> lower(p_path)
        and right(lower(p_file_path), length(lower(p_path)) + 3) <> lower(p_path) || '.md' then null
    when lower(p_path) in (lower(p_relative_path), lower(p_file_path))
        or lower(p_path) || '.md' in (lower(p_relative_path), lower(p_file_path)) then 4
    when right(p_file_path, length(p_path) + 1) = '/' || p_path
        or right(p_file_path, length(p_path) + 4) = '/' || p_path || '.md' then 5
    when right(lower(p_file_path), length(lower(p_path)) + 1) = '/' || lower(p_path)
        or right(lower(p_file_path), length(lower(p_path)) + 4) = '/' || lower(p_path) || '.md'
        then 6
end;

comment on function rag.match_path(text, text, text) is
'How well a path that somebody wrote names a note, 1 best: its path below the vault, its absolute
path, either without .md, either in another case, the end of its absolute path, that in another case.
Null: it does not. Example: select rag.match_path(''b'', ''a/B.md'', ''/vault/a/B.md'');';

create or replace function rag.tidy_path(p_path text)
    returns text
    language sql
    immutable
    parallel safe
return regexp_replace(
    regexp_replace(
        -- as a wikilink, without alias
        regexp_replace(normalize(p_path, nfc), '^!?\[\[([^]|]+)(?:\|[^]]*)?\]\]$', '\1'),
        '^(\./+)+', ''
    ), '(?<=.)/+$', ''
);

comment on function rag.tidy_path(text) is
'A path as it is compared: NFC, without ./ before it, slashes behind it and the brackets of a
wikilink.
Example: select rag.tidy_path(''./a/b.md'');';

create or replace function rag.locate_note(p_path text, p_vault text default null)
    returns table (
        document_id bigint,
        vault_path text,
        relative_path text,
        chunks bigint,
        headings text[],
        warnings text[],
        run_id bigint,
        run_at timestamptz,
        problem text
    )
    language sql
    stable
    parallel safe
begin atomic
    with
    matching as (
        select
            d.id,
            d.vault_path,
            d.relative_path,
            d.warnings,
            rag.match_path(rag.tidy_path(p_path), d.relative_path, d.file_path) as grade,
            (d.vault_path = rtrim(p_vault, '/')) is not true as elsewhere
        from rag.documents as d
        where d.owner is null
    ),
    graded as (
        select
            m.*,
            rank() over (order by m.grade, m.elsewhere) as nth
        from matching as m
        where m.grade is not null
    ),
    headed as (
        select
            c.document_id,
            h.heading,
            row_number() over (
                partition by c.document_id
                order by min(c.chunk_index), min(h.depth), h.heading collate "C"
            ) as position
        from graded as g
        inner join rag.chunks as c on g.id = c.document_id
        cross join rag.list_headings(c.heading_path, c.metadata) as h
        where g.nth = 1
        group by c.document_id, h.heading
    ),
    named as (
        select
            h.document_id,
            array_agg(h.heading order by h.position) as headings
        from headed as h
        where h.position <= 50
        group by h.document_id
    )
    select
        g.id as document_id,
        g.vault_path,
        g.relative_path,
        (select count(*) from rag.chunks as c where c.document_id = g.id) as chunks,
        coalesce(n.headings, '{}') as headings,
        g.warnings,
        l.run_id,
        l.updated_at as run_at,
        l.problem
    from graded as g
    left join named as n on g.id = n.document_id
    left join lateral (
        select
            i.run_id,
            i.updated_at,
            coalesce(i.error, i.reason) as problem
        from rag.ingest_run_items as i
        where
            i.run_id = (
                select max(r.id) from rag.ingest_runs as r
                where r.vault_path = g.vault_path
            )
            and i.relative_path = g.relative_path
            and i.status <> 'done'
    ) as l on true
    where g.nth = 1
    order by g.vault_path collate "C", g.relative_path collate "C"
    limit 20;
end;

comment on function rag.locate_note(text, text) is
'The notes of vaults that a path written by a person means: those that rag.match_path finds best,
of p_vault before others; mostly one, several where the path is ambiguous (20 at most). With the
number of their chunks, their headings (50 at most), what could not be read as meant, and what the
last run of the vault left undone with them (run_id, run_at, problem; null: nothing).
Example: select * from rag.locate_note(''postgres incident runbook'');';

create or replace function rag.trace_note(p_path text, p_vault text default null)
    returns table (
        fate text,
        run_id bigint,
        vault_path text,
        relative_path text,
        moved_to text,
        reason text,
        happened_at timestamptz
    )
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with
    matching as (
        select
            i.id,
            i.run_id,
            r.vault_path,
            r.status as run_status,
            i.relative_path,
            i.moved_from,
            i.action,
            i.status,
            coalesce(i.error, i.reason) as reason,
            i.updated_at,
            f.grade,
            f.former,
            (r.vault_path = rtrim(p_vault, '/')) is not true as elsewhere
        from rag.ingest_run_items as i
        inner join rag.ingest_runs as r on i.run_id = r.id
        cross join lateral (
            select
                rag.match_path(
                    rag.tidy_path(p_path), i.relative_path, r.vault_path || '/' || i.relative_path
                ) as grade,
                false as former
            union all
            select
                rag.match_path(
                    rag.tidy_path(p_path), i.moved_from, r.vault_path || '/' || i.moved_from
                ),
                true
            where i.moved_from is not null and i.status = 'done'
            union all
            select
                7,
                false
            where
                right(i.relative_path, 1) = '/'
                and (
                    starts_with(rag.tidy_path(p_path), i.relative_path)
                    or starts_with(
                        rag.tidy_path(p_path), r.vault_path || '/' || i.relative_path
                    )
                )
        ) as f
        where f.grade is not null
    ),
    newest as (
        select m.*
        from matching as m
        order by m.grade, m.elsewhere, m.run_id desc, m.former
        limit 1
    )
    select
        case
            when n.former then 'moved'
            when
                n.status = 'failed'
                and exists (
                    select 1 from rag.ingest_runs as r
                    where r.vault_path = n.vault_path and r.id > n.run_id and r.status = 'success'
                ) then 'vanished'
            when n.status = 'failed' then 'failed'
            when n.status = 'pending' and starts_with(n.reason, 'withheld') then 'withheld'
            when n.status = 'pending' and n.run_status = 'running' and rag.run_is_alive(n.run_id)
                then 'pending'
            when n.status = 'pending' then 'interrupted'
            when n.action = 'delete' or n.reason like 'file vanished%' then 'deleted'
            else 'stored'
        end as fate,
        n.run_id,
        n.vault_path,
        case when n.former then n.moved_from else n.relative_path end as relative_path,
        case when n.former then n.relative_path end as moved_to,
        n.reason,
        n.updated_at as happened_at
    from newest as n;
end;
$$;

comment on function rag.trace_note(text, text) is
'What the ledger says last about the note that a path means (rag.match_path; of p_vault before
others), or about a folder above it that could not be read; no row where no run has seen it. fate:
failed, vanished (failed, and a later run did not find it any more), deleted, withheld (its
deletion), moved (to moved_to), pending (planned by a run that is at work), interrupted (planned by one
that ended before), stored. reason is the error of a failed one.
Example: select * from rag.trace_note(''notes/broken.md'');';

create or replace function rag.suggest_paths(p_path text, p_limit integer default 5)
    returns table (vault_path text, relative_path text)
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with
    asked as (
        select array(
            select distinct t.term
            from unnest(rag.lexical_terms(regexp_replace(p_path, '\.md$', '', 'i'))) as t (term)
        ) as terms
    ),
    compared as (
        select
            d.vault_path,
            d.relative_path,
            starts_with(d.relative_path, rag.tidy_path(p_path) || '/') as below,
            (
                select count(distinct t.term)
                from unnest(
                    rag.lexical_terms(regexp_replace(d.relative_path, '\.md$', '', 'i'))
                ) as t (term)
                where t.term = any(a.terms)
            ) as common
        from rag.documents as d
        cross join asked as a
        where d.owner is null
    )
    select
        c.vault_path,
        c.relative_path
    from compared as c
    where c.below or c.common > 0
    order by c.below desc, c.common desc, c.relative_path collate "C", c.vault_path collate "C"
    limit p_limit;
end;
$$;

comment on function rag.suggest_paths(text, integer) is
'Stored notes that a path which names none may have meant: those below it, as a folder, then those
whose path shares most words with it.
Example: select * from rag.suggest_paths(''incident runbok.md'');';

create or replace function rag.rank_words(
    p_question text, p_chunk_ids bigint[], p_filter jsonb default '{}'
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
    v_terms text[];
    v_units sparsevec[];
    v_query sparsevec;
    v_sentences sparsevec[];
    v_most double precision[];
    v_lowest double precision;
    v_ids bigint[];
    v_products double precision[];
    v_new_ids bigint[];
    v_new_products double precision[];
begin
    select q.terms, q.units, q.query, q.sentences, q.most
    into v_terms, v_units, v_query, v_sentences, v_most
    from rag.prepare_question(p_question, rtrim(p_filter ->> 'vault', '/')) as q;
    if v_terms is null then
        return;
    end if;
    select array_agg(u.chunk_id), array_agg(-(v_query <#> u.terms))
    into v_new_ids, v_new_products
    from rag.unstored_terms(p_filter) as u
    where u.passes and (v_query <#> u.terms) < 0;
    select min(p.product) into v_lowest
    from (
        select -(v_query <#> t.terms) as product
        from rag.chunk_terms as t
        where t.chunk_id = any(p_chunk_ids)
        union all
        select n.product
        from unnest(v_new_ids, v_new_products) as n (chunk_id, product)
        where n.chunk_id = any(p_chunk_ids)
    ) as p
    where p.product > 0;
    if v_lowest is null then
        return;
    end if;
    select array_agg(c.chunk_id), array_agg(c.product) into v_ids, v_products
    from rag.list_term_candidates(v_query, p_filter, v_lowest) as c;

    return query
    with
    found as materialized (
        select f.chunk_id, f.product from unnest(v_ids, v_products) as f (chunk_id, product)
        union all
        select n.chunk_id, n.product
        from unnest(v_new_ids, v_new_products) as n (chunk_id, product)
        where n.product >= v_lowest
    ),
    -- the order of paths counts only among those that fit the words equally well
    tied as (
        select
            f.chunk_id,
            row_number() over (
                partition by f.product
                order by c.relative_path collate "C", c.heading_path collate "C",
                c.chunk_index, d.vault_path collate "C"
            ) as nth
        from found as f
        join rag.chunks as c on c.id = f.chunk_id
        join rag.documents as d on d.id = c.document_id
        where f.product in (select o.product from found as o where o.chunk_id = any(p_chunk_ids))
    ),
    ranked as (
        select
            r.chunk_id, r.product, r.above + t.nth as rank,
            coalesce(
                s.terms,
                (
                    select u.terms
                    from rag.unstored_terms(p_filter) as u
                    where u.chunk_id = r.chunk_id
                )
            ) as terms
        from (
            select f.chunk_id, f.product, rank() over (order by f.product desc) - 1 as above
            from found as f
        ) as r
        join tied as t on t.chunk_id = r.chunk_id
        left join rag.chunk_terms as s on s.chunk_id = r.chunk_id
        where r.chunk_id = any(p_chunk_ids)
    )
    select
        k.chunk_id,
        k.rank,
        k.product * (rag.bm25_k1() + 1) / 15,
        rag.measure_coverage(k.terms, v_sentences, v_most),
        array(
            select m.term
            from unnest(v_terms, v_units) with ordinality as m (term, unit, position)
            where (m.unit <#> k.terms) < 0
            order by m.position
        )
    from ranked as k
    order by k.rank;
end;
$$;

comment on function rag.rank_words(text, bigint[], jsonb) is
'Of some chunks, the place of each among all that pass the filter by the words of a question,
however far down, with score, coverage and terms: the columns of rag.find_lexical, and the same values. A
chunk with none of the words, or that does not pass, is left out. Checks nothing: callers do.
Example: select * from rag.rank_words(''重置密码'', array[1, 2, 3]);';

create or replace function rag.rank_vectors(
    p_embedding public.vector,
    p_provider text,
    p_model text,
    p_dim integer,
    p_chunk_ids bigint[],
    p_filter jsonb default '{}'
)
    returns table (chunk_id bigint, vector_rank bigint, distance double precision)
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_half constant halfvec := rag.half_vector(p_embedding);
    v_error constant double precision := rag.half_error();
    v_own double precision[];
    v_ids bigint[];
    v_halves double precision[];
    v_unsure bigint[];
begin
    select array_agg(e.embedding <=> p_embedding) into v_own
    from rag.embeddings as e
    where e.chunk_id = any(p_chunk_ids)
        and e.embedding_provider = p_provider
        and e.embedding_model = p_model
        and e.embedding_dim = p_dim
        and (e.embedding <=> p_embedding) <> 'NaN';
    if v_own is null or vector_norm(p_embedding) = 0 then
        return;
    end if;
    select array_agg(c.embedding_id), array_agg(c.half_distance) into v_ids, v_halves
    from rag.list_candidates(
        v_half, p_provider, p_model, p_dim, p_filter,
        case when v_half is not null then (select max(o.d) from unnest(v_own) as o (d)) + v_error end
    ) as c;
    -- by their half vectors the others are surely nearer than, or farther from, each of these chunks
    v_unsure := array(
        select c.id
        from unnest(v_ids, v_halves) as c (id, half)
        where c.half is null
            or exists (
                select 1 from unnest(v_own) as o (d) where abs(c.half - o.d) <= v_error
            )
    );

    return query
    with
    compared as materialized (
        select k.chunk_id, k.distance
        from rag.compare_embeddings(
            v_unsure, p_embedding, p_provider, p_model, p_dim, p_filter
        ) as k
    ),
    sure as materialized (
        select c.half
        from unnest(v_ids, v_halves) as c (id, half)
        where c.half is not null and c.id <> all(v_unsure)
    ),
    placed as (
        select
            k.chunk_id, k.distance,
            row_number() over (
                order by k.distance, c.relative_path collate "C", c.heading_path collate "C",
                c.chunk_index, d.vault_path collate "C"
            ) as nth
        from compared as k
        join rag.chunks as c on c.id = k.chunk_id
        join rag.documents as d on d.id = c.document_id
    )
    select
        p.chunk_id,
        p.nth + (select count(*) from sure as s where s.half < p.distance),
        p.distance
    from placed as p
    where p.chunk_id = any(p_chunk_ids)
    order by 2;
end;
$$;

comment on function rag.rank_vectors(
    public.vector, text, text, integer, bigint[], jsonb
) is
'Of some chunks, the place of each among all that pass the filter by distance to a vector, however
far down; exact, also where searches use an approximate index. A chunk that has no vector of this
configuration, or does not pass, is left out. Checks nothing: callers do.
Example in psql: select embedding as q from rag.embeddings limit 1 \gset
select * from rag.rank_vectors(:''q'', ''fake'', ''fake-lexical-v1'', 1024, array[1, 2]);';

create or replace function rag.rank_note(
    p_document_id bigint,
    p_heading text,
    p_question text,
    p_embedding public.vector default null,
    p_provider text default null,
    p_model text default null,
    p_dim integer default 1024,
    p_filter jsonb default '{}',
    p_retrieval text default null
)
    returns table (
        chunk_id bigint,
        heading_path text[],
        chunk_index integer,
        content text,
        passes boolean,
        embedded boolean,
        similarity double precision,
        vector_rank bigint,
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
    v_most constant integer := 10;  -- chunks of a long note that are placed by vectors
    v_retrieval constant text := rag.check_retrieval(p_retrieval, p_embedding, p_provider);
    v_vectors constant boolean := v_retrieval <> 'lexical'
        or (p_embedding is not null and rag.is_wordless(p_question));
    v_ids bigint[];
begin
    perform rag.check_dim(p_dim, p_embedding);
    perform rag.check_filter(p_filter);
    if p_question is null and v_retrieval <> 'vector' then
        raise exception 'the question is null'
            using errcode = 'RG001', hint = 'Ask something, or ask for vector with its vector.';
    end if;
    if not exists (select 1 from rag.documents as d where d.id = p_document_id) then
        raise exception 'there is no document %', coalesce(p_document_id::text, 'null')
            using errcode = 'RG005', hint = 'rag.locate_note finds a document by its path.';
    end if;
    v_ids := array(
        select c.id
        from rag.chunks as c
        where c.document_id = p_document_id
            and (p_heading is null or rag.has_heading(c.heading_path, c.metadata, p_heading))
    );
    return query
    with
    own as materialized (
        select
            c.id, c.heading_path, c.chunk_index, c.content,
            c.id = any(array(
                select f.chunk_id
                from rag.filtered_chunks(p_filter) as f
                where f.chunk_id = any(v_ids)
            )) as passes,
            e.id is not null as embedded,
            case
                when p_embedding is not null
                    then rag.similarity_score(coalesce(e.embedding <=> p_embedding, 1))
            end as similarity,
            row_number() over (order by e.embedding <=> p_embedding, c.chunk_index) as nearness
        from rag.chunks as c
        left join rag.embeddings as e
            on e.chunk_id = c.id
            and e.embedding_provider = p_provider
            and e.embedding_model = p_model
            and e.embedding_dim = p_dim
        where c.id = any(v_ids)
    ),
    passing as materialized (
        select
            array(select o.id from own as o where o.passes) as ids,
            array(select o.id from own as o where o.passes and o.nearness <= v_most) as near_ids
    )
    select
        o.id, o.heading_path, o.chunk_index, o.content, o.passes, o.embedded, o.similarity,
        v.vector_rank, w.lexical_rank, w.lexical_score, w.coverage, w.matched_terms
    from own as o
    left join (
        select r.*
        from passing as p
        cross join lateral rag.rank_words(p_question, p.ids, p_filter) as r
        where v_retrieval <> 'vector'
    ) as w on w.chunk_id = o.id
    left join (
        select r.*
        from passing as p
        cross join lateral rag.rank_vectors(
            p_embedding, p_provider, p_model, p_dim, p.near_ids, p_filter
        ) as r
        where v_vectors
    ) as v on v.chunk_id = o.id
    order by
        least(w.lexical_rank, v.vector_rank), w.lexical_rank, v.vector_rank, o.chunk_index;
end;
$$;

comment on function rag.rank_note(
    bigint, text, text, public.vector, text, text, integer, jsonb, text
) is
'Where each chunk of a note (below a heading, if given) stands for a question among all chunks that
pass the filter, however far down: the ranks of rag.rank_chunks without its limit, null for a leg that
the retrieval does not use or that cannot find the chunk. passes: the chunk passes the filter;
embedded: it has a vector of this configuration. Best first. By vectors the 10 nearest chunks of the
note are placed. Raises RG001 (filter, retrieval, no question, no vector), RG004, RG005 (document).
Example: select r.*
from rag.locate_note(''b.md'') as n, rag.rank_note(n.document_id, null, ''lag'') as r;';
