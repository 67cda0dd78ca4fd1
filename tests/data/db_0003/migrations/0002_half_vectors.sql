-- A half-precision copy of each vector in the row itself and a key of its configuration, ahead of
-- the other columns, for the exact scan in two stages; and what is known about approximate indexes.
-- Copies rag.embeddings once: 6 s for 100,000 rows where this was written, with room for a second
-- copy meanwhile. Owner and grants are carried over; triggers, policies, grants on single columns
-- and own indexes of a DBA are not, and a view on the table stops it.
-- squawk-ignore-file ban-drop-constraint, ban-drop-table, prefer-identity, renaming-table
-- squawk-ignore-file renaming-object
-- squawk-ignore-file require-concurrent-index-deletion

alter table rag.embeddings rename to embeddings_before;
alter sequence rag.embeddings_id_seq rename to embeddings_before_id_seq;
alter table rag.embeddings_before
drop constraint embeddings_pkey,
drop constraint embeddings_chunk_id_embedding_provider_embedding_model_embe_key;
drop index if exists rag.idx_embeddings_config, rag.idx_embeddings_input_hash;

-- the columns that the exact scan reads come first: a tenth of its time
create table rag.embeddings (
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

insert into rag.embeddings (
    id, chunk_id, embedding_provider, embedding_model, embedding_dim, embedding, created_at,
    updated_at, owner, scope, input_hash
)
select
    b.id,
    b.chunk_id,
    b.embedding_provider,
    b.embedding_model,
    b.embedding_dim,
    b.embedding,
    b.created_at,
    b.updated_at,
    b.owner,
    b.scope,
    b.input_hash
from rag.embeddings_before as b
order by b.id;
select setval('rag.embeddings_id_seq', s.last_value, s.is_called)
from rag.embeddings_before_id_seq as s;

create index idx_embeddings_config
on rag.embeddings (embedding_provider, embedding_model, embedding_dim);
create index idx_embeddings_input_hash on rag.embeddings (input_hash);
create index idx_embeddings_without_half
on rag.embeddings (embedding_provider, embedding_model, embedding_dim)
where embedding_half is null;

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

create table rag.index_checks (
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

-- the tables belong to whom they belonged, and who was allowed to use the vectors still is
do $$
declare
    v_owner text;
    v_grant record;
begin
    select c.relowner::regrole::text into v_owner
    from pg_class as c
    where c.oid = 'rag.embeddings_before'::regclass;
    execute format('alter table rag.embeddings owner to %s', v_owner);
    execute format('alter table rag.index_checks owner to %s', v_owner);
    for v_grant in
        select
            n.name, a.privilege_type, a.is_grantable,
            case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
        from (values
            ('table rag.embeddings', 'rag.embeddings_before'::regclass),
            ('table rag.index_checks', 'rag.embeddings_before'::regclass),
            ('sequence rag.embeddings_id_seq', 'rag.embeddings_before_id_seq'::regclass)
        ) as n (name, former)
        join pg_class as c on c.oid = n.former
        cross join aclexplode(c.relacl) as a
        where a.grantee <> c.relowner
    loop
        execute format(
            'grant %s on %s to %s', v_grant.privilege_type, v_grant.name, v_grant.grantee
        ) || case when v_grant.is_grantable then ' with grant option' else '' end;
    end loop;
end;
$$;
drop table rag.embeddings_before;
analyze rag.embeddings;
