-- How sure a retrieval is: the parameters of the calibrated confidence. One table more.
-- squawk-ignore-file prefer-bigint-over-int

create table rag.calibrations (
    embedding_provider text not null,
    embedding_model text not null,
    retrieval text not null check (retrieval in ('lexical', 'hybrid')),
    origin text not null check (origin in ('calibrated', 'shipped')),
    intercept double precision not null,
    similarity_weight double precision not null check (similarity_weight >= 0),
    coverage_weight double precision not null check (coverage_weight >= 0),
    cjk_weight double precision not null,
    fitted_on text not null,
    answerable integer not null,
    unanswerable integer not null,
    auroc double precision not null,
    wrong_answers double precision not null,
    wrong_refusals double precision not null,
    fitted_at timestamptz not null default now(),
    primary key (embedding_provider, embedding_model, retrieval, origin)
);
insert into rag.calibrations (
    embedding_provider, embedding_model, retrieval, origin,
    intercept, similarity_weight, coverage_weight, cjk_weight,
    fitted_on, answerable, unanswerable, auroc, wrong_answers, wrong_refusals, fitted_at
) values
(
    '*', '*', 'lexical', 'shipped', -6.75, 0, 23.37, 2.49,
    'xquad-zh, xquad-en, cmrc2018-trial; figures: whole sets, asked by strangers',
    6624, 6489, 0.9842, 0.0638, 0.0562, '2026-12-01'
),
(
    'fake', 'fake-lexical-v1', 'hybrid', 'shipped', -6.75, 0, 23.37, 2.49,
    'xquad-zh, xquad-en, cmrc2018-trial; figures: whole sets, asked by strangers',
    6624, 6489, 0.9842, 0.0638, 0.0562, '2026-12-01'
);

comment on table rag.calibrations is
'How the signals of a retrieval become the probability that the answer is there (see
rag.answer_probability), with what it was fitted on. Read it through rag.find_calibration.';
comment on column rag.calibrations.embedding_provider is 'Provider; * for all.';
comment on column rag.calibrations.embedding_model is 'Model of the provider; * for all.';
comment on column rag.calibrations.retrieval is 'lexical or hybrid; vector has no calibration.';
comment on column rag.calibrations.origin is
'shipped: comes with pyrag; calibrated: made by `rag calibrate`, goes before the shipped one.';
comment on column rag.calibrations.intercept is 'Log odds where all signals are 0.';
comment on column rag.calibrations.similarity_weight is
'Log odds for a best similarity of 1 instead of 0.';
comment on column rag.calibrations.coverage_weight is
'Log odds for a best coverage of 1 instead of 0.';
comment on column rag.calibrations.cjk_weight is
'Log odds for a question that is all CJK (rag.cjk_share).';
comment on column rag.calibrations.fitted_on is 'The questions that it was fitted on, for people.';
comment on column rag.calibrations.answerable is 'Number of questions whose answer was there.';
comment on column rag.calibrations.unanswerable is 'Number of questions whose answer was not.';
comment on column rag.calibrations.auroc is
'How likely an answerable question had a higher confidence than another, 0.5 to 1.';
comment on column rag.calibrations.wrong_answers is
'Share of the unanswerable ones with a confidence of 0.5 or more.';
comment on column rag.calibrations.wrong_refusals is
'Share of the answerable ones with a confidence below 0.5.';
comment on column rag.calibrations.fitted_at is 'When it was fitted.';
