-- Tests of db/functions/lexical.sql: the words of texts and questions, and their weights.

begin;
select plan(63);

-- fold_text ---------------------------------------------------------------------------------------

select is(rag.fold_text(t), f, format('%s is folded to %s', t, f))
from (values
    ('ABC', 'abc'), ('ＡＢＣ１２', 'abc12'), ('École ÜBER', 'école über'), ('ЖУРНАЛ', 'журнал'),
    ('ΣΊΣΥΦΟΣ', 'σίσυφοσ'), ('Σίσυφος', 'σίσυφοσ'), ('İstanbul', 'istanbul'), ('ﾊﾝｶｸ', 'ハンカク'),
    ('ﬁle', 'file'), ('é', 'é'), ('GROẞ', 'groß'), ('重置', '重置'), ('', ''), (null, null)
) as u (t, f);

-- lexical_terms -----------------------------------------------------------------------------------

select set_eq(
    format('select unnest(rag.lexical_terms(%L))', t), w::text[], format('the terms of: %s', t)
)
from (values
    ('重置数据库密码', '{重置,置数,数据,据库,库密,密码}'),
    ('猫', '{猫}'), ('猫,狗', '{猫,狗}'), ('猫。', '{猫}'), ('カタカナ', '{カタ,タカ,カナ}'),
    ('한국어', '{한국,국어}'), ('在PG里', '{pg,在,里}'), ('𠀀𠀁', '{𠀀𠀁}'),
    ('tidb_mem_quota_query', '{tidb_mem_quota_query,tidb,mem,quota,queri}'),
    ('API-503:', '{api-503,api,503}'), ('(v8.5.1)', '{v8.5.1,v8,5,1}'), ('C++, C#.', '{c++,c#,c}'),
    ('--force __init__ end.', '{forc,init,end}'), ('- a | b', '{a,b}'), ('# Title', '{titl}'),
    ('Backups are restored', '{backup,are,restor}'), ('Größe naïve', '{größe,naïv}'),
    ('KubeAPIErrorBudgetBurn', '{kubeapierrorbudgetburn,kube,api,error,budget,burn}'),
    ('MySQL TiDB', '{mysql,tidb}'), ('don''t', '{don,t}'), ('100 %', '{100}'), ('？？？', '{}'),
    ('🙂', '{}'), ('', '{}')
) as u (t, w);
select is(rag.lexical_terms(null), '{}', 'no text has no terms');
select is(
    (
        select array_agg(t.term order by t.term collate "C")
        from unnest(rag.lexical_terms('lag and Lag, 延迟延迟')) as t (term)
    ),
    '{and,lag,lag,延迟,延迟,迟延}', 'a term is there as often as it occurs'
);

-- is_stop_word, without_question_words, question_terms --------------------------------------------

select is(rag.is_stop_word(t), w, format('is %s a stop word: %s', t, w))
from (values ('the', true), ('what', true), ('lag', false), ('数据', false)) as u (t, w);
select is(rag.without_question_words('如何重置密码吗？'), ' 重置密码 ？', 'words that only ask');
select is(rag.question_terms(q), w::text[], format('the terms of the question: %s', q))
from (values
    ('如何重置密码？', '{重置,置密,密码}'), ('什么是吗啡？', '{是吗,吗啡}'), ('怎么办', '{怎么,么办}'),
    ('What is the replication lag?', '{replic,lag}'), ('who is who', '{who,is}'),
    ('lag lag LAG', '{lag}'), ('？', '{}'), (null, '{}')
) as u (q, w);

-- term_dim, sparse_vector, weigh_terms ------------------------------------------------------------

select ok(
    (
        select bool_and(rag.term_dim(i::text) between 1 and 1000000000)
            and count(distinct rag.term_dim(i::text)) > 9990
        from generate_series(1, 10000) as i
    ), 'dimensions lie in the range of the vectors, and two terms hardly ever share one'
);
select is(
    rag.sparse_vector('{7,3,0}', '{0.5,2,9}')::text, '{3:2,7:0.5}/1000000000',
    'a sparse vector is ordered by dimension and has none below 1'
);
select is(rag.sparse_vector('{}', '{}')::text, '{}/1000000000', 'an empty one');
-- 2 of 3 terms: k = 1.2 * (0.25 + 0.75 * 3 / 300) = 0.309; 15 * 2 / 2.309 = 12.99, 15 / 1.309 = 11.46
select is(
    rag.weigh_terms('{a,b,a}'),
    rag.sparse_vector(array[rag.term_dim('a'), rag.term_dim('b')], '{13,11}'),
    'weights are steps of a fifteenth of the most that BM25 can give'
);
select is(
    rag.weigh_terms(array_fill('x'::text, array[12000]) || '{y}'),
    rag.sparse_vector(array[rag.term_dim('x'), rag.term_dim('y')], '{15,1}'),
    'the least weight is 1'
);
select is(rag.weigh_terms('{}')::text, '{}/1000000000', 'no terms, no weights');
select ok(
    public.l2_norm(
        rag.weigh_terms((select array_agg('w' || i) from generate_series(1, 20000) as i))
    ) > 0, 'a chunk of more terms than a vector holds is weighed all the same'
);

-- lexical_text, weigh_chunk -----------------------------------------------------------------------

select is(
    rag.lexical_text('c', '{h,i}', 'p/q.md', '{t}', '{"title": "T", "aliases": ["A"]}'),
    E'c\nh\ni\nh\ni\np/q.md\nt\nT\n["A"]', 'headings count twice, the rest once'
);
select is(rag.lexical_text('c', '{}', 'p', '{}', '{}'), E'c\n\n\np\n', 'a chunk with nothing else');
select is(
    rag.weigh_chunk('c', '{h}', 'p', '{}', '{}'), rag.weigh_terms('{c,h,h,p}'),
    'a chunk is weighed by all that is read of it'
);

select * from finish();
rollback;
