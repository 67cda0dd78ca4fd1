-- Tests of db/functions/vector_index.sql: state and recall of approximate indexes.
-- tests/test_vector_index.py builds them by the command.

begin;
select plan(24);

insert into rag.documents (vault_path, file_path, relative_path, content_hash)
values ('/v', '/v/a.md', 'a.md', 'h');
insert into rag.chunks (document_id, chunk_index, content, file_path, relative_path, content_hash)
select d.id, i, 'text', d.file_path, d.relative_path, 'h'
from rag.documents as d, generate_series(1, 300) as i;
insert into rag.embeddings (
    chunk_id, embedding_provider, embedding_model, embedding_dim, embedding
)
select
    c.id, 'fake', 'm', 1024,
    (
        select array_agg(sin(c.chunk_index * i) + sin(c.chunk_index * 7 + i * 0.3))
        from generate_series(1, 1024) as i
    )::public.vector
from rag.chunks as c;

-- Without an index --------------------------------------------------------------------------------

select is_empty($$ select * from rag.vector_index_status('fake', 'm', 1024) $$, 'no index, no status');
select is_empty($$ select * from rag.index_recall(5) $$, 'no index, no recall');
select is_empty($$ select * from rag.index_progress('fake', 'm', 1024) $$, 'no index, no progress');
select is_empty(
    $$ select * from rag.check_index_recall('fake', 'm', 1024, 5) $$, 'nor is anything kept'
);
select throws_ok(
    format('select * from rag.index_recall(%s)', a), 'RG001', null, format('recall (%s) is refused', a)
)
from unnest(array['0', '-1', 'null', '5, 0', '5, 21', '5, null']) as a;

-- With one ----------------------------------------------------------------------------------------

do $$ begin
    execute format(
        'create index %I on rag.embeddings using hnsw (embedding_half public.halfvec_ip_ops)'
        ' where embedding_provider = ''fake'' and embedding_model = ''m'' and embedding_dim = 1024',
        rag.vector_index_name('fake', 'm', 1024)
    );
end $$;
select results_eq(
    $$ select s.index_name, s.is_valid, s.indexed_rows, s.size_bytes > 0, s.recall, s.warning
    from rag.vector_index_status('fake', 'm', 1024) as s $$,
    $$ values (rag.vector_index_name('fake', 'm', 1024), true, 300::bigint, true, null::float8, null) $$,
    'a complete index that was never checked'
);
select results_eq(
    $$ select r.embedding_provider, r.embedding_model, r.embedding_dim, r.asked, r.questions, r.top_k
    from rag.index_recall(20, 5) as r $$,
    $$ values ('fake', 'm', 1024, 'stored', 20, 5), ('fake', 'm', 1024, 'between', 19, 5) $$, 'recall is measured for each index, as asked'
);
select is_empty(
    $$ select * from rag.index_recall(20, 5, 'fake', 'other') $$, 'or for one configuration alone'
);
select is(
    (select r.recall from rag.index_recall(1000, 10) as r where r.asked = 'stored'), 1::float8,
    'an index of few rows finds all, and all rows are looked up at most'
);
select results_eq(
    $$ select round(r.recall_low::numeric, 4), round(r.recall_high::numeric, 4)
    from rag.index_recall(100) as r where r.asked = 'stored' $$,
    $$ values (0.9630, 1.0000) $$, 'the interval is Wilson''s: 100 of 100 is at least 0.963'
);
select results_eq(
    $$ select k.asked, k.recall > 0.5 and k.recall <= 1, k.questions, k.top_k
    from rag.check_index_recall('fake', 'm', 1024, 30, 3) as k $$,
    $$ values ('stored', true, 30, 3), ('between', true, 29, 3) $$, 'a check is returned'
);
select results_eq(
    $$ select s.recall, s.recall_between, s.questions, s.top_k
    from rag.vector_index_status('fake', 'm', 1024) as s $$,
    $$ select s.recall, b.recall, 30, 3 from rag.index_checks as s, rag.index_checks as b
    where s.asked = 'stored' and b.asked = 'between' $$, 'and kept'
);
select is(
    (select sum(k.questions) from rag.check_index_recall('fake', 'm', 1024, 10) as k), 19::bigint,
    'a second check takes the place of the first'
);
update rag.index_checks set recall = 0.95;
select is(
    (select s.warning from rag.vector_index_status('fake', 'm', 1024) as s), null,
    'a recall of 0.95 is no warning'
);
update rag.index_checks set recall = 0.9499 where asked = 'between';
select matches(
    (select s.warning from rag.vector_index_status('fake', 'm', 1024) as s),
    'found only 0\.950 of the true neighbours.*rag db index drop', 'below that there is one'
);
select is_empty(
    $$ select * from rag.vector_index_status('fake', 'm2', 1024) $$,
    'another configuration has no index'
);
update pg_index set indisvalid = false
where indexrelid = ('rag.' || rag.vector_index_name('fake', 'm', 1024))::regclass;
select matches(
    (select s.warning from rag.vector_index_status('fake', 'm', 1024) as s), 'not complete',
    'an incomplete index is a warning'
);
select is_empty($$ select * from rag.index_recall(5) $$, 'its recall is not measured');
do $$ begin perform rag.forget_index_check('fake', 'm', 1024); end $$;
select is_empty($$ select * from rag.index_checks $$, 'a check can be forgotten');

select * from finish();
rollback;
