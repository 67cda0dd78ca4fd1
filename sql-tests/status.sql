-- Tests of db/functions/status.sql: what the index holds.

begin;
select plan(9);

select results_eq(
    $$ select * from rag.index_status('fake', 'fake-lexical-v1', 1024) $$,
    $$ values (0::bigint, 0::bigint, 0::bigint, false) $$,
    'an empty database is not ready'
);

insert into rag.documents (id, vault_path, file_path, relative_path, content_hash)
values (1, '/v', '/v/a.md', 'a.md', 'a'), (2, '/v', '/v/b.md', 'b.md', 'b'),
(3, '/w', '/w/a.md', 'a.md', 'a');
select results_eq(
    $$ select * from rag.index_status('fake', 'fake-lexical-v1', 1024) $$,
    $$ values (3::bigint, 0::bigint, 0::bigint, false) $$,
    'documents without text are counted, but nothing can be searched'
);

insert into rag.chunks (
    id, document_id, chunk_index, content, file_path, relative_path, content_hash
)
select n, 1 + n / 3, n, 'text', '/v/a.md', 'a.md', 'h' from generate_series(1, 4) as g (n);
insert into rag.embeddings (
    chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
)
select c.id, e.provider, e.model, 1024, array_fill(1, array[1024])::public.vector
from rag.chunks as c
join (values ('fake', 'fake-lexical-v1', 4), ('other', 'm', 2), ('other', 'n', 1))
as e (provider, model, chunks) on c.id <= e.chunks;

select results_eq(
    $$ select * from rag.index_status('fake', 'fake-lexical-v1', 1024) $$,
    $$ values (3::bigint, 4::bigint, 4::bigint, true) $$,
    'documents, chunks and embeddings of all vaults are counted'
);
select results_eq(
    $$ select * from rag.index_status('other', 'm', 1024) $$,
    $$ values (3::bigint, 4::bigint, 2::bigint, true) $$,
    'embeddings are those of one configuration'
);
select results_eq(
    $$ select * from rag.index_status('other', 'fake-lexical-v1', 1024) $$,
    $$ values (3::bigint, 4::bigint, 0::bigint, false) $$,
    'provider and model belong together'
);
select results_eq(
    $$ select * from rag.index_status('fake', 'fake-lexical-v1', 768) $$,
    $$ values (3::bigint, 4::bigint, 0::bigint, false) $$,
    'another dimension has nothing'
);

select results_eq(
    $$ select * from rag.find_unknown_sources(array['b.md', 'a.md', 'c.md', 'c.md'],
        'fake', 'fake-lexical-v1', 1024) $$,
    $$ values ('b.md'), ('c.md') $$,
    'a source is unknown without a note or without chunks, and named once'
);
select results_eq(
    $$ select * from rag.find_unknown_sources(array['a.md'], 'other', 'fake-lexical-v1', 1024) $$,
    $$ values ('a.md') $$,
    'and where the configuration has no vectors of it'
);
select is_empty(
    $$ select * from rag.find_unknown_sources('{}', 'fake', 'fake-lexical-v1', 1024) $$,
    'nothing is unknown of nothing'
);

select * from finish();
rollback;
