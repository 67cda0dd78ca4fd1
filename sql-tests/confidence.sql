-- Tests of db/functions/confidence.sql: the calibrated confidence, and the decision to answer.

begin;
select plan(81);

-- cjk_share ---------------------------------------------------------------------------------------

select is(round(rag.cjk_share(question)::numeric, 4), share, format('%s of %s', share, question))
from (values
    ('如何重置密码', 1.0000), ('How do I reset it?', 0.0000), ('P1 工单', 0.6667), ('カタカナ', 1.0000),
    ('한국어', 1.0000), ('Überfluss v8.5.1', 0.0000), ('Где это', 0.0000), ('a 税', 0.5000),
    ('？？？', null), ('', null), (null, null), ('🙂', null)
) as u (question, share);

-- answer_probability ------------------------------------------------------------------------------

select is(
    round(rag.answer_probability(s, c, j, -7, ws, 25, 2.5)::numeric, 6), expected::numeric(7, 6), name
)
from (values
    (0.0, 0.28, 0.0, 0.0, 0.5, 'even odds where the log odds are 0'),
    (0.9, 0.28, 0.0, 0.0, 0.5, 'similarity of weight 0 counts nothing'),
    (0.1, 0.28, 0.0, 10.0, 0.731059, 'the log odds of all signals are added: 1 is 0.731059'),
    (null, 0.28, null, 10.0, 0.5, 'a signal that is not there counts 0'),
    (0.0, 0.18, 1.0, 0.0, 0.5, 'the share of CJK counts'),
    (0.0, 0.0, 0.0, 0.0, 0.000911, 'no coverage is not zero probability')
) as u (s, c, j, ws, expected, name);
select is(rag.answer_probability(0.5, null, 0, -7, 1, 25, 2), null, 'without coverage there is none');
select is(rag.answer_probability(0.5, 0.5, 0, null, null, null, null), null, 'nor without parameters');
select is(rag.answer_probability(1, 1, 1, 1e9, 1e9, 1e9, 1e9), 1::float8, 'large numbers do not overflow');
select ok(
    rag.answer_probability(1, 1, 1, -1e9, 0, 0, 0) between 0 and 1e-300, 'nor do large negative ones'
);
select is_empty(
    $$ select * from (
        select c, lag(rag.answer_probability(0, c / 20.0, 0, -7, 0, 25, 2)) over (order by c) as before,
            rag.answer_probability(0, c / 20.0, 0, -7, 0, 25, 2) as here
        from generate_series(0, 20) as c
    ) as s where s.here <= s.before $$,
    'more coverage is more probability'
);

-- the shipped calibrations ------------------------------------------------------------------------

select results_eq(
    'select embedding_provider, embedding_model, retrieval, origin from rag.calibrations order by 1',
    $$ values ('*', '*', 'lexical', 'shipped'), ('fake', 'fake-lexical-v1', 'hybrid', 'shipped') $$,
    'two calibrations are shipped'
);
select is_empty(
    $$ select * from rag.calibrations
    where answerable < 100 or unanswerable < 100 or auroc not between 0.9 and 1
        or wrong_answers not between 0 and 0.1 or wrong_refusals not between 0 and 0.1
        or fitted_on = '' or fitted_on ~ 'acme' $$,
    'they say what they were fitted on and how well that went'
);

-- find_calibration, set_calibration, drop_calibration ---------------------------------------------

select results_eq(
    format('select origin from rag.find_calibration(%L, %L, %L)', p, m, r),
    case when o is null then 'select null::text limit 0' else format('select %L', o) end,
    format('%s %s %s: %s', p, m, r, o)
)
from (values
    ('fake', 'fake-lexical-v1', 'lexical', 'shipped'), ('fake', 'fake-lexical-v1', 'hybrid', 'shipped'),
    ('fake', 'fake-lexical-v1', 'vector', null), ('local-e5', 'm', 'lexical', 'shipped'),
    ('fake', 'another', 'hybrid', null), (null, null, 'lexical', 'shipped')
) as u (p, m, r, o);
select lives_ok(
    $$ select rag.set_calibration('local-e5', 'm', r, '{-3, 2, 9, 1}', 'mine', 30, 40, 0.97, 0.1, 0.2)
    from unnest(array['lexical', 'hybrid']) as r $$,
    'a calibration of one''s own is set'
);
select results_eq(
    $$ select f.* from rag.find_calibration('local-e5', 'm', 'lexical') as f $$,
    $$ values ('local-e5', 'm', 'calibrated', -3::float8, 2::float8, 9::float8, 1::float8, 'mine') $$,
    'it goes before the shipped one'
);
select results_eq(
    $$ select f.origin from rag.find_calibration('local-e5', 'other', 'lexical') as f $$,
    $$ values ('shipped') $$, 'but not for another model'
);
select lives_ok(
    $$ select rag.set_calibration('local-e5', 'm', 'lexical', '{-4, 0, 8, 0}', 'new', 1, 2, 0.9, 0, 0) $$,
    'it can be set again'
);
select results_eq(
    $$ select f.intercept, f.fitted_on from rag.find_calibration('local-e5', 'm', 'lexical') as f $$,
    $$ values (-4::float8, 'new') $$, 'then the new one counts'
);
select results_eq(
    $$ select rag.drop_calibration('local-e5', 'm', r) from unnest(array['lexical', 'hybrid', 'hybrid']) as r $$,
    'values (true), (true), (false)', 'dropping says whether there was one'
);
select results_eq(
    $$ select f.origin from rag.find_calibration('local-e5', 'm', 'lexical') as f $$,
    $$ values ('shipped') $$, 'and then the shipped one counts again'
);
select is(rag.drop_calibration('*', '*', 'lexical'), false, 'a shipped one cannot be dropped');
select throws_ok(
    format('select rag.set_calibration(%L, %L, %L, %L, %L, 1, 1, 0.9, 0, 0)', 'p', 'm', r, w, 'f'),
    'RG001', null, name
)
from (values
    ('vector', '{-3, 2, 9, 1}', 'vector has no calibration'),
    ('lexical', '{-3, 2, 9}', 'three parameters are refused'),
    ('lexical', '{-3, 2, null, 1}', 'a missing one is refused'),
    ('lexical', '{-3, -2, 9, 1}', 'similarity does not count against an answer'),
    ('hybrid', '{-3, 2, -9, 1}', 'nor does coverage'), ('lexical', '{NaN, 1, 1, 1}', 'NaN is refused'),
    ('lexical', '{1, 1, Infinity, 1}', 'so is infinity'), ('lexical', null, 'no parameters are refused'),
    (null, '{-3, 2, 9, 1}', 'no retrieval is refused')
) as u (r, w, name);

-- estimate_confidence -----------------------------------------------------------------------------

select results_eq(
    format(
        'select round(e.confidence::numeric, 4), e.calibration from rag.estimate_confidence(%L, %L, %L, %L, %L, %L) as e',
        s, c, j, 'fake', 'fake-lexical-v1', r
    ),
    format('values (%L::numeric, %L::text)', expected, calibration), name
)
from (values
    (0.3, 0.9, 0, 'lexical', 1.0000, 'shipped', 'much coverage is almost certain'),
    (0.9, 0.05, 0, 'hybrid', 0.0037, 'shipped', 'little coverage is almost certainly no answer, whatever the similarity'),
    (0.3, null, 0, 'lexical', 0.3000, null, 'without coverage it is the similarity'),
    (0.3, 0.9, 0, 'vector', 0.3000, null, 'in vector it is the similarity'),
    (null, null, null, 'vector', null, null, 'nothing is no confidence')
) as u (s, c, j, r, expected, calibration, name);

-- decide_mode -------------------------------------------------------------------------------------

select results_eq(
    format('select d.mode, d.rule, d.threshold from rag.decide_mode(%L, %L, %L, 0.4, 0, 0.5, %L, 0.2, %L, %L) as d',
        c, k, s, m, f, e),
    format('values (%L, %L, %L::float8)', mode, rule, threshold), name
)
from (values
    (0.51, 'shipped', 0.3, null, false, false, 'rag', 'reached_threshold', 0.5, 'above the threshold'),
    (0.5, 'shipped', 0.3, null, false, false, 'rag', 'reached_threshold', 0.5, 'exactly at the threshold'),
    (0.4999999999, 'shipped', 0.3, null, false, false, 'no_answer', 'below_threshold', 0.5, 'just below'),
    (0.9, 'shipped', 0.3, 0.3, false, false, 'rag', 'reached_threshold', 0.5, 'exactly at the floor'),
    (0.9, 'shipped', 0.2999999, 0.3, false, false, 'no_answer', 'below_min_similarity', 0.5, 'below the floor'),
    (0.1, 'shipped', 0.1, 0.3, false, false, 'no_answer', 'below_threshold', 0.5, 'the threshold is named first'),
    (0.9, 'shipped', null, 0.3, false, false, 'rag', 'reached_threshold', 0.5, 'without a vector there is no floor'),
    (0.21, null, 0.21, null, false, false, 'rag', 'reached_threshold', 0.2, 'a similarity has the usual threshold'),
    (0.19, null, 0.19, null, false, false, 'no_answer', 'below_threshold', 0.2, 'below it'),
    (0.21, null, 0.21, 0.3, false, false, 'no_answer', 'below_threshold', 0.3, 'or the one that is set'),
    (0.21, null, 0.21, 0.1, false, false, 'rag', 'reached_threshold', 0.1, 'also a lower one'),
    (null, 'shipped', null, null, false, false, 'no_answer', 'nothing_found', 0.5, 'nothing found'),
    ('NaN', null, null, null, false, false, 'no_answer', 'nothing_found', 0.2, 'NaN is nothing'),
    (null, null, null, 0.0, false, false, 'no_answer', 'nothing_found', 0.0, 'nothing found at a threshold of 0'),
    (0.0, null, 0.0, 0.0, false, false, 'rag', 'reached_threshold', 0.0, 'a threshold of 0 answers everything'),
    (0.9, 'shipped', 0.3, null, true, true, 'rag', 'reached_threshold', 0.5, 'the knowledge base goes first'),
    (0.1, 'shipped', 0.3, null, true, true, 'fallback', 'below_threshold', 0.5, 'fallback asked for and enabled'),
    (0.1, 'shipped', 0.3, null, true, false, 'no_answer', 'below_threshold', 0.5, 'fallback not enabled'),
    (0.1, 'shipped', 0.3, null, false, true, 'no_answer', 'below_threshold', 0.5, 'fallback not asked for')
) as u (c, k, s, m, f, e, mode, rule, threshold, name);
select matches(
    (select d.reason from rag.decide_mode(c::float8, k, s, 0.4, 0, 0.5, m, 0.2, f, e) as d), pattern, pattern
)
from (values
    (0.81, 'shipped', 0.3, null, false, false, '^confidence 0\.810000 is not below the threshold 0\.500000$'),
    (0.31, 'shipped', 0.3, null, false, false, '^confidence 0\.310000 is below the threshold 0\.500000$'),
    (0.81, 'shipped', 0.3, 0.4, false, false, '^best similarity 0\.300000 is below the floor 0\.400000 of RAG_MIN'),
    (null, null, 0.3, null, false, false, '^nothing was found$'),
    (0.4999999, 'shipped', 0.3, null, false, false, '^confidence 0\.4999999 is below the threshold 0\.5$'),
    (0.1, 'shipped', 0.3, null, true, false, 'disabled globally$'),
    (0.1, 'shipped', 0.3, null, true, true, 'fallback .* enabled$')
) as u (c, k, s, m, f, e, pattern);
select results_eq(
    $$ select d.confidence, d.min_similarity, d.similarity, d.coverage, d.cjk_share, d.calibration
    from rag.decide_mode(0.8, 'shipped', 0.3, 0.4, 0.1, 0.5, 0.2, 0.2) as d $$,
    $$ values (0.8::float8, 0.2::float8, 0.3::float8, 0.4::float8, 0.1::float8, 'shipped') $$,
    'the record has all that was compared'
);
select results_eq(
    $$ select d.confidence, d.min_similarity from rag.decide_mode(null, null, null, null, null, 0.5, 0.2, 0.2) as d $$,
    $$ values (0::float8, null::float8) $$,
    'nothing found is confidence 0, and a threshold is no floor'
);

select * from finish();
rollback;
