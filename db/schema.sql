-- Tables of pyrag. The single truth for stored data: Docker's init mount, `rag db init` and psql
-- run this same file. Running it again changes nothing. Functions live in functions/, changes of
-- tables for older databases in migrations/; see README.md in this folder.

create extension if not exists vector with schema public;

create schema if not exists rag;
comment on schema rag is
'pyrag: documents, chunks, embeddings and ingest runs, and the functions that decide over them.
Read the manual with \d+ rag.* and \df+ rag.*.';

-- What is installed -------------------------------------------------------------------------------

create table if not exists rag.install (
    only_row boolean primary key default true check (only_row),
    schema_version integer not null,
    sql_sha256 text,
    pyrag_version text,
    installed_at timestamptz not null default now()
);
insert into rag.install (schema_version) values (4) on conflict do nothing;

comment on table rag.install is
'One row: which version of the tables and functions this database has.';
comment on column rag.install.only_row is 'Always true: there is one row.';
comment on column rag.install.schema_version is
'Number of the newest migration that the tables contain; 1 is the first release.';
comment on column rag.install.sql_sha256 is
'SHA-256 over all SQL files of the last `rag db init`; null when the files were run with psql
alone.';
comment on column rag.install.pyrag_version is
'Version of pyrag that ran `rag db init`; null after psql.';
comment on column rag.install.installed_at is 'When the SQL was last installed.';

create table if not exists rag.migrations (
    version integer primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
);

comment on table rag.migrations is
'Migrations that this database has had, or was born with: a file that changes afterwards is
refused.';
comment on column rag.migrations.version is 'Leading number of the file name.';
comment on column rag.migrations.name is 'File name in db/migrations.';
comment on column rag.migrations.sha256 is 'SHA-256 of the file when it was applied.';
comment on column rag.migrations.applied_at is
'When it was applied or taken as part of schema.sql.';

-- Documents, chunks, embeddings -------------------------------------------------------------------

create table if not exists rag.documents (
    id bigserial primary key,
    vault_path text not null,
    file_path text not null,
    relative_path text not null,
    content_hash text not null,
    mtime_ns bigint,
    size_bytes bigint,
    frontmatter jsonb not null default '{}'::jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    owner uuid,
    scope text,
    warnings text[] not null default array[]::text[],
    unique (vault_path, relative_path)
);

comment on table rag.documents is 'One row a file. Deleting it deletes its chunks and embeddings.';
comment on column rag.documents.id is
'Identity of the document; kept when the file is edited or renamed.';
comment on column rag.documents.vault_path is 'Resolved absolute path of the vault.';
comment on column rag.documents.file_path is 'Resolved absolute path of the file.';
comment on column rag.documents.relative_path is
'POSIX path below the vault, without ./ and ..; citations call it source.';
comment on column rag.documents.content_hash is
'Hex SHA-256 of the bytes that the chunks were made from.';
comment on column rag.documents.mtime_ns is
'Modification time of the file in nanoseconds, for people.';
comment on column rag.documents.size_bytes is 'Size of the file in bytes.';
comment on column rag.documents.frontmatter is 'YAML frontmatter as JSON; dates as written.';
comment on column rag.documents.created_at is 'When the document was first stored.';
comment on column rag.documents.updated_at is 'When the document was last stored or moved.';
comment on column rag.documents.owner is 'Session that uploaded it; null for a file of a vault.';
comment on column rag.documents.scope is
'Whose it is as text: the vault''s path, or upload:<owner>; null counts as a vault''s.';
comment on column rag.documents.warnings is
'What could not be read as meant, e.g. broken frontmatter.';

create table if not exists rag.chunks (
    id bigserial primary key,
    document_id bigint not null references rag.documents (id) on delete cascade,
    chunk_index integer not null,
    content text not null,
    file_path text not null,
    relative_path text not null,
    heading_path text[] not null default array[]::text[],
    frontmatter jsonb not null default '{}'::jsonb,
    tags text[] not null default array[]::text[],
    wikilinks text[] not null default array[]::text[],
    metadata jsonb not null default '{}'::jsonb,
    content_hash text not null,
    token_count integer,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    owner uuid,
    scope text,
    has_terms boolean not null default false,
    unique (document_id, chunk_index)
);

comment on table rag.chunks is 'Pieces of documents, the unit of retrieval and citation.';
comment on column rag.chunks.id is 'Identity of the chunk; a changed document gets new ones.';
comment on column rag.chunks.document_id is 'The document it was cut from.';
comment on column rag.chunks.chunk_index is 'Place in the document, from 0.';
comment on column rag.chunks.content is 'Source text, heading line included.';
comment on column rag.chunks.file_path is 'Copy of the document''s file_path.';
comment on column rag.chunks.relative_path is 'Copy of the document''s relative_path.';
comment on column rag.chunks.heading_path is
'Headings from the outermost to the chunk''s own, as plain text.';
comment on column rag.chunks.frontmatter is 'Copy of the document''s frontmatter.';
comment on column rag.chunks.tags is
'Tags of the frontmatter and of the chunk''s own text, without #.';
comment on column rag.chunks.wikilinks is
'Pages that the chunk''s own text links to, without alias.';
comment on column rag.chunks.metadata is
'sections: heading paths when several small sections were merged; page: page number of a PDF, from
1.';
comment on column rag.chunks.content_hash is 'Hex SHA-256 of content.';
comment on column rag.chunks.token_count is 'Number of cl100k_base tokens of content.';
comment on column rag.chunks.created_at is 'When the chunk was stored.';
comment on column rag.chunks.updated_at is 'When the chunk was last changed.';
comment on column rag.chunks.owner is 'Copy of the document''s owner.';
comment on column rag.chunks.scope is 'Copy of the document''s scope.';
comment on column rag.chunks.has_terms is
'Whether rag.chunk_terms has it; if not, a lexical search makes its terms on the spot.';

-- the columns that the exact scan reads come first: a tenth of its time
create table if not exists rag.embeddings (
    id bigserial primary key,
    chunk_id bigint not null references rag.chunks (id) on delete cascade,
    embedding_key bigint generated always as (
        hashtextextended(embedding_provider || chr(31) || embedding_model, embedding_dim)
    ) stored,
    embedding_half public.halfvec(1024) generated always as (
        case
            when public.vector_norm(embedding) between 1e-12 and 1e12
                then public.l2_normalize(embedding)::public.halfvec(1024)
        end
    ) stored,
    embedding_provider text not null,
    embedding_model text not null,
    embedding_dim integer not null check (embedding_dim = 1024),
    embedding public.vector(1024) not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    owner uuid,
    scope text,
    input_hash text,
    unique (chunk_id, embedding_provider, embedding_model, embedding_dim)
);
alter table rag.embeddings alter column embedding_half set storage plain;
-- the vector goes out of the row, short texts such as scope do not
alter table rag.embeddings set (toast_tuple_target = 4080);

comment on table rag.embeddings is
'Vectors of chunks; several providers side by side, retrieval reads one (provider, model, dim).';
comment on column rag.embeddings.id is 'Identity of the row.';
comment on column rag.embeddings.chunk_id is 'The chunk that was embedded.';
comment on column rag.embeddings.embedding_key is
'Hash of provider, model and dim: one comparison for each row that a search reads instead of three.
What it finds is compared with the three columns again.';
comment on column rag.embeddings.embedding_half is
'The vector at length one and half precision, kept in the row itself: what a search reads first.
Null where the length is 0 or out of all proportion: such rows are compared in full.';
comment on column rag.embeddings.embedding_provider is 'Provider, e.g. fake or local-qwen3.';
comment on column rag.embeddings.embedding_model is 'Model name, e.g. fake-lexical-v1.';
comment on column rag.embeddings.embedding_dim is 'Number of dimensions, always 1024.';
comment on column rag.embeddings.embedding is 'The vector, of length one.';
comment on column rag.embeddings.created_at is 'When the vector was stored.';
comment on column rag.embeddings.updated_at is
'When the vector was last moved to another chunk or replaced.';
comment on column rag.embeddings.owner is 'Copy of the document''s owner.';
comment on column rag.embeddings.scope is 'Copy of the document''s scope.';
comment on column rag.embeddings.input_hash is
'Hex SHA-256 of the exact text that was embedded: the same text is never embedded twice.';

create table if not exists rag.index_checks (
    embedding_provider text not null,
    embedding_model text not null,
    embedding_dim integer not null,
    asked text not null check (asked in ('stored', 'between')),
    checked_at timestamptz not null default now(),
    questions integer not null,
    top_k integer not null,
    recall double precision not null,
    recall_low double precision not null,
    recall_high double precision not null,
    primary key (embedding_provider, embedding_model, embedding_dim, asked)
);

comment on table rag.index_checks is
'How well the approximate index of an embedding configuration found what the exact scan finds, when
it was last measured (rag.check_index_recall).';
comment on column rag.index_checks.embedding_provider is 'Provider of the indexed embeddings.';
comment on column rag.index_checks.embedding_model is 'Model of the indexed embeddings.';
comment on column rag.index_checks.embedding_dim is 'Dimensions, always 1024.';
comment on column rag.index_checks.asked is
'stored: with stored vectors; between: with points halfway between two of them, as hard as questions
that resemble no chunk.';
comment on column rag.index_checks.checked_at is 'When it was measured.';
comment on column rag.index_checks.questions is 'How many vectors were looked up.';
comment on column rag.index_checks.top_k is 'How many neighbours of each were compared.';
comment on column rag.index_checks.recall is
'Share of the true neighbours that the index found, from 0 to 1.';
comment on column rag.index_checks.recall_low is 'Lower end of its 95 % interval.';
comment on column rag.index_checks.recall_high is 'Upper end of its 95 % interval.';

-- Terms of chunks, for the lexical search ---------------------------------------------------------

create table if not exists rag.chunk_terms (
    id bigint primary key,
    chunk_id bigint unique references rag.chunks (id) on delete set null,
    scope text not null,
    owner uuid,
    terms public.sparsevec(1000000000) not null
);
-- in the row as long as it fits a page, and not compressed: every lexical search reads all of them
alter table rag.chunk_terms alter column terms set storage external;
alter table rag.chunk_terms set (toast_tuple_target = 8160);

comment on table rag.chunk_terms is
'The terms of each chunk as a sparse vector: what a lexical search reads. A row without a chunk is
what is left of a deleted one until rag.count_terms() has taken it out of rag.term_counts.';
comment on column rag.chunk_terms.id is 'The chunk''s id, kept when the chunk is gone.';
comment on column rag.chunk_terms.chunk_id is 'The chunk; null when it has been deleted.';
comment on column rag.chunk_terms.scope is
'Whose statistics it counts in: the scope of the document, else its vault''s path.';
comment on column rag.chunk_terms.owner is 'Copy of the document''s owner.';
comment on column rag.chunk_terms.terms is
'At the dimension of each term (a hash) its weight in the chunk, 1 to 15; see rag.weigh_terms.';

create table if not exists rag.uncounted_terms (
    id bigint primary key
);

comment on table rag.uncounted_terms is
'Rows of rag.chunk_terms that rag.term_counts does not have in it yet; searches add them.';
comment on column rag.uncounted_terms.id is 'The row of rag.chunk_terms.';

create table if not exists rag.term_counts (
    dim integer not null,
    scope text not null,
    chunks bigint not null,
    primary key (dim, scope)
);

comment on table rag.term_counts is
'In how many chunks of a scope each term occurs, for idf; read it through rag.term_statistics, which
adds what is not counted yet. Written by rag.count_terms() alone.';
comment on column rag.term_counts.dim is
'Dimension of the term, rag.term_dim(term); 0 stands for all chunks of the scope.';
comment on column rag.term_counts.scope is 'As rag.chunk_terms.scope.';
comment on column rag.term_counts.chunks is 'Number of chunks.';

-- Calibrations of the confidence ------------------------------------------------------------------

create table if not exists rag.calibrations (
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
)
on conflict do nothing;

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

-- Ingest runs -------------------------------------------------------------------------------------

create table if not exists rag.ingest_runs (
    id bigserial primary key,
    vault_path text not null,
    embedding_provider text not null,
    embedding_model text not null,
    embedding_dim integer not null check (embedding_dim = 1024),
    status text not null check (status in ('running', 'success', 'failed')),
    started_at timestamptz not null default now(),
    finished_at timestamptz,
    documents_added integer not null default 0,
    documents_updated integer not null default 0,
    documents_deleted integer not null default 0,
    documents_skipped integer not null default 0,
    chunks_written integer not null default 0,
    embeddings_written integer not null default 0,
    error_summary text,
    metadata jsonb not null default '{}'::jsonb,
    documents_moved integer not null default 0,
    documents_embedded integer not null default 0,
    documents_failed integer not null default 0,
    embeddings_reused integer not null default 0
);

comment on table rag.ingest_runs is
'One row a run of `rag ingest`. Counters change in the transaction that changes the documents.';
comment on column rag.ingest_runs.id is 'Number of the run.';
comment on column rag.ingest_runs.vault_path is 'Resolved absolute path of the vault.';
comment on column rag.ingest_runs.embedding_provider is 'Provider of the run.';
comment on column rag.ingest_runs.embedding_model is 'Model of the run.';
comment on column rag.ingest_runs.embedding_dim is 'Dimensions, always 1024.';
comment on column rag.ingest_runs.status is
'running, success (no file failed, nothing withheld) or failed (error_summary says why).';
comment on column rag.ingest_runs.started_at is 'When the run began.';
comment on column rag.ingest_runs.finished_at is 'When it ended; null while it runs.';
comment on column rag.ingest_runs.documents_added is 'New files stored.';
comment on column rag.ingest_runs.documents_updated is 'Changed files stored again.';
comment on column rag.ingest_runs.documents_deleted is
'Documents deleted because their file is gone.';
comment on column rag.ingest_runs.documents_skipped is
'Files unchanged, with all embeddings present.';
comment on column rag.ingest_runs.chunks_written is 'Chunks stored.';
comment on column rag.ingest_runs.embeddings_written is 'Embeddings computed and stored.';
comment on column rag.ingest_runs.error_summary is 'Why the run failed; null otherwise.';
comment on column rag.ingest_runs.metadata is 'Who ran it: host, process id, version of pyrag.';
comment on column rag.ingest_runs.documents_moved is 'Files found again under another path.';
comment on column rag.ingest_runs.documents_embedded is
'Unchanged files that only lacked embeddings.';
comment on column rag.ingest_runs.documents_failed is 'Files that could not be read or stored.';
comment on column rag.ingest_runs.embeddings_reused is
'Embeddings kept because their text is unchanged.';

create table if not exists rag.ingest_run_items (
    id bigserial primary key,
    run_id bigint not null references rag.ingest_runs (id) on delete cascade,
    relative_path text not null,
    action text not null check (action in ('add', 'change', 'move', 'delete', 'skip', 'embed')),
    status text not null default 'pending' check (status in ('pending', 'done', 'failed')),
    reason text not null,
    moved_from text,
    old_hash text,
    new_hash text,
    document_id bigint,
    chunks_written integer not null default 0,
    embeddings_written integer not null default 0,
    embeddings_reused integer not null default 0,
    error text,
    updated_at timestamptz not null default now(),
    unique (run_id, relative_path)
);

comment on table rag.ingest_run_items is
'One row a document and run: what was planned, why, and what came of it.';
comment on column rag.ingest_run_items.id is 'Identity of the row.';
comment on column rag.ingest_run_items.run_id is 'The run.';
comment on column rag.ingest_run_items.relative_path is 'Path below the vault; a folder ends in /.';
comment on column rag.ingest_run_items.action is 'add, change, move, delete, skip or embed.';
comment on column rag.ingest_run_items.status is
'pending (planned, or withheld), done or failed (error says why).';
comment on column rag.ingest_run_items.reason is 'Why this action was planned.';
comment on column rag.ingest_run_items.moved_from is 'Former path of a moved file.';
comment on column rag.ingest_run_items.old_hash is
'content_hash before the run; null for a new file.';
comment on column rag.ingest_run_items.new_hash is
'content_hash of the file; null when gone or unreadable.';
comment on column rag.ingest_run_items.document_id is
'The document, without foreign key: it may be gone.';
comment on column rag.ingest_run_items.chunks_written is 'Chunks stored for this document.';
comment on column rag.ingest_run_items.embeddings_written is
'Embeddings computed for this document.';
comment on column rag.ingest_run_items.embeddings_reused is 'Embeddings kept for this document.';
comment on column rag.ingest_run_items.error is 'What went wrong with this file.';
comment on column rag.ingest_run_items.updated_at is 'When the row last changed.';

create index if not exists idx_documents_content_hash on rag.documents (content_hash);
create index if not exists idx_chunks_relative_path on rag.chunks (relative_path);
create index if not exists idx_chunks_content_hash on rag.chunks (content_hash);
create index if not exists idx_chunks_without_terms on rag.chunks (id) where not has_terms;
create index if not exists idx_chunk_terms_without_chunk on rag.chunk_terms (id)
where chunk_id is null;
create index if not exists idx_term_counts_none on rag.term_counts (dim) where chunks <= 0;
create index if not exists idx_embeddings_config
on rag.embeddings (embedding_provider, embedding_model, embedding_dim);
create index if not exists idx_embeddings_input_hash on rag.embeddings (input_hash);
create index if not exists idx_embeddings_without_half
on rag.embeddings (embedding_provider, embedding_model, embedding_dim)
where embedding_half is null;
create index if not exists idx_ingest_runs_running on rag.ingest_runs (vault_path)
where status = 'running';
