-- The lexical search: terms of each chunk, and in how many chunks each occurs. `rag db init` makes
-- the terms of the chunks that are there (rag.fill_terms), about half a millisecond each; until
-- then a search makes them on the spot. Takes no copy of any table.
-- squawk-ignore-file prefer-bigint-over-int, require-concurrent-index-creation

alter table rag.chunks add column has_terms boolean not null default false;
comment on column rag.chunks.has_terms is
'Whether rag.chunk_terms has it; if not, a lexical search makes its terms on the spot.';

create table rag.chunk_terms (
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

create table rag.uncounted_terms (
    id bigint primary key
);

comment on table rag.uncounted_terms is
'Rows of rag.chunk_terms that rag.term_counts does not have in it yet; searches add them.';
comment on column rag.uncounted_terms.id is 'The row of rag.chunk_terms.';

create table rag.term_counts (
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

create index idx_chunks_without_terms on rag.chunks (id) where not has_terms;
create index idx_chunk_terms_without_chunk on rag.chunk_terms (id) where chunk_id is null;
create index idx_term_counts_none on rag.term_counts (dim) where chunks <= 0;

-- the tables belong to whom the others belong, and whoever may use the chunks may use their terms
do $$
declare
    v_owner text;
    v_grant record;
    v_table text;
begin
    select c.relowner::regrole::text into v_owner
    from pg_class as c
    where c.oid = 'rag.chunks'::regclass;
    foreach v_table in array array['rag.chunk_terms', 'rag.uncounted_terms', 'rag.term_counts'] loop
        execute format('alter table %s owner to %s', v_table, v_owner);
        for v_grant in
            select
                a.privilege_type, a.is_grantable,
                case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
            from pg_class as c
            cross join aclexplode(c.relacl) as a
            where c.oid = 'rag.chunks'::regclass and a.grantee <> c.relowner
        loop
            execute format('grant %s on %s to %s', v_grant.privilege_type, v_table, v_grant.grantee)
                || case when v_grant.is_grantable then ' with grant option' else '' end;
        end loop;
    end loop;
end;
$$;
