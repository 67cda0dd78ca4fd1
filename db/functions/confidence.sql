-- How sure a retrieval is that the knowledge base holds the answer, and the decision to answer.

create or replace function rag.cjk_share(p_question text)
    returns double precision
    language sql
    immutable
    parallel safe
begin atomic
    select n.characters::double precision / nullif(n.characters + n.words, 0)
    from (
        select
            regexp_count(p_question, '[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]') as characters,
            regexp_count(p_question, '[0-9A-Za-z\u00c0-\u1fff]+') as words
    ) as n;
end;

comment on function rag.cjk_share(text) is
'How far a question is Chinese, Japanese or Korean, from 0 to 1: its CJK characters as a share of
these and its runs of letters and digits; null without any. Such questions are searched by pairs of
characters, many of which join two words and are found nowhere, so that their coverage is lower.';

create or replace function rag.answer_probability(
    p_similarity double precision,
    p_coverage double precision,
    p_cjk_share double precision,
    p_intercept double precision,
    p_similarity_weight double precision,
    p_coverage_weight double precision,
    p_cjk_weight double precision
)
    returns double precision
    language sql
    immutable
    parallel safe
return case
    when p_coverage + p_intercept is not null then 1 / (1 + exp(-greatest(-700, least(700,
        p_intercept
        + p_similarity_weight * coalesce(p_similarity, 0)
        + p_coverage_weight * p_coverage
        + p_cjk_weight * coalesce(p_cjk_share, 0)
    ))))
end;

comment on function rag.answer_probability(
    double precision, double precision, double precision,
    double precision, double precision, double precision, double precision
) is
'The probability that the answer is there, by logistic regression over the signals of a retrieval
with the parameters of rag.calibrations; null without these or without coverage. Example:
select rag.answer_probability(0.3, 0.4, 0, -7, 0, 25, 2.5);';

create or replace function rag.find_calibration(
    p_provider text, p_model text, p_retrieval text
)
    returns table (
        embedding_provider text,
        embedding_model text,
        origin text,
        intercept double precision,
        similarity_weight double precision,
        coverage_weight double precision,
        cjk_weight double precision,
        fitted_on text
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        c.embedding_provider,
        c.embedding_model,
        c.origin,
        c.intercept,
        c.similarity_weight,
        c.coverage_weight,
        c.cjk_weight,
        c.fitted_on
    from rag.calibrations as c
    where
        c.retrieval = p_retrieval
        and c.embedding_provider in (p_provider, '*')
        and c.embedding_model in (p_model, '*')
    order by c.origin asc, c.embedding_provider desc, c.embedding_model desc
    limit 1;
end;

comment on function rag.find_calibration(text, text, text) is
'The calibration in force for a provider, model and way of retrieval: one made by `rag calibrate`
before a shipped one, one for the provider before one for all (*). Empty: there is none, as always
for vector, and a question is judged by similarity.
Example: select * from rag.find_calibration(''fake'', ''fake-lexical-v1'', ''lexical'');';

create or replace function rag.estimate_confidence(
    p_similarity double precision,
    p_coverage double precision,
    p_cjk_share double precision,
    p_provider text,
    p_model text,
    p_retrieval text
)
    returns table (confidence double precision, calibration text)
    language sql
    stable
    parallel safe
begin atomic
    select
        coalesce(
            rag.answer_probability(
                p_similarity, p_coverage, p_cjk_share,
                f.intercept, f.similarity_weight, f.coverage_weight, f.cjk_weight
            ),
            p_similarity
        ) as confidence,
        case when p_coverage is not null then f.origin end as calibration
    from (values (1)) as one (row)
    left join rag.find_calibration(p_provider, p_model, p_retrieval) as f on true;
end;

comment on function rag.estimate_confidence(
    double precision, double precision, double precision, text, text, text
) is
'The confidence of a retrieval by its signals: the probability that the answer is there
(rag.answer_probability) and the origin of the calibration, shipped or calibrated; without a
calibration or coverage the similarity itself, and calibration is null. Example:
select * from rag.estimate_confidence(0.3, 0.4, 0, ''fake'', ''fake-lexical-v1'', ''lexical'');';

create or replace function rag.decide_mode(
    p_confidence double precision,
    p_calibration text,
    p_similarity double precision,
    p_coverage double precision,
    p_cjk_share double precision,
    p_min_confidence double precision,
    p_min_similarity double precision,
    p_usual_similarity double precision,
    p_fallback boolean default false,
    p_fallback_enabled boolean default false
)
    returns table (
        mode text,
        rule text,
        reason text,
        confidence double precision,
        threshold double precision,
        min_similarity double precision,
        similarity double precision,
        coverage double precision,
        cjk_share double precision,
        calibration text
    )
    language sql
    immutable
    parallel safe
begin atomic
    with
    compared as (
        select
            nullif(p_confidence, 'NaN') as confidence,
            case
                when p_calibration is null then coalesce(p_min_similarity, p_usual_similarity)
                else p_min_confidence
            end as threshold,
            case when p_calibration is not null then p_min_similarity end as floor
    ),
    judged as (
        select
            c.*,
            -- as many as tell them apart: confidence 0.5000004 is not below 0.5
            case
                when
                    c.confidence = c.threshold
                    or round(c.confidence::numeric, 6) <> round(c.threshold::numeric, 6) then 6
            end as digits,
            case
                when c.confidence is null then 'nothing_found'
                when c.confidence < c.threshold then 'below_threshold'
                when p_similarity < c.floor then 'below_min_similarity'
                else 'reached_threshold'
            end as rule
        from compared as c
    )
    select
        case
            when j.rule = 'reached_threshold' then 'rag'
            when p_fallback and p_fallback_enabled then 'fallback'
            else 'no_answer'
        end as mode,
        j.rule,
        concat(
            case j.rule
                when 'nothing_found' then 'nothing was found'
                when 'below_min_similarity' then format(
                    'best similarity %s is below the floor %s of RAG_MIN_SIMILARITY',
                    round(p_similarity::numeric, 6), round(j.floor::numeric, 6)
                )
                else format(
                    'confidence %s is %s the threshold %s',
                    coalesce(round(j.confidence::numeric, j.digits)::text, j.confidence::text),
                    case j.rule when 'below_threshold' then 'below' else 'not below' end,
                    coalesce(round(j.threshold::numeric, j.digits)::text, j.threshold::text)
                )
            end,
            case
                when j.rule = 'reached_threshold' or not p_fallback then ''
                when p_fallback_enabled then '; fallback is asked for and enabled'
                else '; fallback is asked for but disabled globally'
            end
        ) as reason,
        coalesce(j.confidence, 0) as confidence,
        j.threshold,
        j.floor as min_similarity,
        p_similarity as similarity,
        p_coverage as coverage,
        p_cjk_share as cjk_share,
        p_calibration as calibration
    from judged as j;
end;

comment on function rag.decide_mode(
    double precision, text, double precision, double precision, double precision,
    double precision, double precision, double precision, boolean, boolean
) is
'Whether a question is answered from the knowledge base (rag), refused (no_answer) or passed to the
model''s general knowledge (fallback: asked for and enabled), with the rule that fired
(nothing_found, below_threshold, below_min_similarity, reached_threshold), the same in words, and what
was compared. The service adds two rules of its own: no_room (it counts tokens) and no_supported_quote
(it reads the model''s answer). The first five arguments are those of rag.retrieve; a null confidence says that nothing
was found at all. A calibrated confidence is compared with p_min_confidence, and p_min_similarity, if
set, is a floor on the best similarity, where there is one; a confidence that is a similarity is compared with
p_min_similarity, else with p_usual_similarity, the provider''s. Example:
select mode, reason from rag.decide_mode(0.81, ''shipped'', 0.31, 0.4, 0, 0.5, null, 0.2);';

create or replace function rag.set_calibration(
    p_provider text,
    p_model text,
    p_retrieval text,
    p_weights double precision[],
    p_fitted_on text,
    p_answerable integer,
    p_unanswerable integer,
    p_auroc double precision,
    p_wrong_answers double precision,
    p_wrong_refusals double precision
)
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    if (p_retrieval in ('lexical', 'hybrid')) is not true then
        raise exception 'only lexical and hybrid retrieval have a calibration, got %',
            coalesce(p_retrieval, 'null')
            using errcode = 'RG001', hint = 'Set RAG_RETRIEVAL=lexical or hybrid.';
    end if;
    if p_weights is null or cardinality(p_weights) <> 4
        or exists (
            select 1 from unnest(p_weights) as w (weight)
            where (abs(w.weight) < 'Infinity') is not true
        )
    then
        raise exception 'a calibration has four finite parameters, got %',
            coalesce(p_weights::text, 'null')
            using errcode = 'RG001', hint = 'Intercept, weights of similarity, coverage, CJK share.';
    end if;
    if p_weights[2] < 0 or p_weights[3] < 0 then
        raise exception 'similarity and coverage may not count against an answer, got %', p_weights
            using errcode = 'RG001', hint = 'The questions do not separate: see what calibrate says.';
    end if;
    insert into rag.calibrations as c (
        embedding_provider, embedding_model, retrieval, origin,
        intercept, similarity_weight, coverage_weight, cjk_weight,
        fitted_on, answerable, unanswerable, auroc, wrong_answers, wrong_refusals
    )
    values (
        p_provider, p_model, p_retrieval, 'calibrated',
        p_weights[1], p_weights[2], p_weights[3], p_weights[4],
        p_fitted_on, p_answerable, p_unanswerable, p_auroc, p_wrong_answers, p_wrong_refusals
    )
    on conflict (embedding_provider, embedding_model, retrieval, origin) do update set
        intercept = excluded.intercept,
        similarity_weight = excluded.similarity_weight,
        coverage_weight = excluded.coverage_weight,
        cjk_weight = excluded.cjk_weight,
        fitted_on = excluded.fitted_on,
        answerable = excluded.answerable,
        unanswerable = excluded.unanswerable,
        auroc = excluded.auroc,
        wrong_answers = excluded.wrong_answers,
        wrong_refusals = excluded.wrong_refusals,
        fitted_at = now();
end;
$$;

comment on function rag.set_calibration(
    text, text, text, double precision[], text, integer, integer,
    double precision, double precision, double precision
) is
'Puts a calibration of one''s own in force, in place of an earlier one: p_weights are the intercept
and the weights of similarity, coverage and CJK share. The shipped one stays and counts again after
rag.drop_calibration. Raises RG001 for vector, for weights that are not four numbers, and for those of
similarity and coverage below 0.';

create or replace function rag.drop_calibration(
    p_provider text, p_model text, p_retrieval text
)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    delete from rag.calibrations as c
    where
        c.embedding_provider = p_provider
        and c.embedding_model = p_model
        and c.retrieval = p_retrieval
        and c.origin = 'calibrated';
    return found;
end;
$$;

comment on function rag.drop_calibration(text, text, text) is
'Takes a calibration of one''s own out of force, so that the shipped one counts again; false: there
was none.';

create or replace function rag.list_calibrations(p_provider text, p_model text)
    returns table (
        embedding_provider text,
        embedding_model text,
        retrieval text,
        origin text,
        in_force boolean,
        intercept double precision,
        similarity_weight double precision,
        coverage_weight double precision,
        cjk_weight double precision,
        fitted_on text,
        answerable integer,
        unanswerable integer,
        auroc double precision,
        wrong_answers double precision,
        wrong_refusals double precision,
        fitted_at timestamptz
    )
    language sql
    stable
    parallel safe
begin atomic
    select
        c.embedding_provider,
        c.embedding_model,
        c.retrieval,
        c.origin,
        ((c.embedding_provider, c.embedding_model, c.origin) = (
            select
                f.embedding_provider,
                f.embedding_model,
                f.origin
            from rag.find_calibration(p_provider, p_model, c.retrieval) as f
        )) is true as in_force,
        c.intercept,
        c.similarity_weight,
        c.coverage_weight,
        c.cjk_weight,
        c.fitted_on,
        c.answerable,
        c.unanswerable,
        c.auroc,
        c.wrong_answers,
        c.wrong_refusals,
        c.fitted_at
    from rag.calibrations as c
    order by c.retrieval desc, c.origin asc, c.embedding_provider desc, c.embedding_model desc;
end;

comment on function rag.list_calibrations(text, text) is
'All calibrations with what they were fitted on and how well they did there; in_force marks those
that count for a provider and model, one for each way of retrieval (rag.find_calibration).
Example: select * from rag.list_calibrations(''fake'', ''fake-lexical-v1'');';
