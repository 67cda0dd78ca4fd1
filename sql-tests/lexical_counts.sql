-- Tests of db/functions/lexical_counts.sql: terms of chunks, and in how many chunks each occurs.

begin;
select plan(45);

-- a chunk in its document, with the columns of the contract only
create function pg_temp.store(
    p_source text, p_content text, p_vault text default '/v', p_index integer default 0
) returns void language sql as $$
    insert into rag.documents (vault_path, file_path, relative_path, content_hash)
    values (p_vault, p_vault || '/' || p_source, p_source, 'd')
    on conflict (vault_path, relative_path) do nothing;
    insert into rag.chunks (
        document_id, chunk_index, content, file_path, relative_path, content_hash
    )
    select d.id, p_index, p_content, d.file_path, d.relative_path, 'h'
    from rag.documents as d where d.vault_path = p_vault and d.relative_path = p_source;
$$;

-- number of all chunks, then of those with lag and with 备份
create function pg_temp.counts(p_vault text default null) returns bigint[] language sql as $$
    select array_agg(s.chunks order by n.position)
    from unnest(array[0, rag.term_dim('lag'), rag.term_dim('备份')])
        with ordinality as n (dim, position)
    join rag.term_statistics(array[0, rag.term_dim('lag'), rag.term_dim('备份')], p_vault) as s
        on s.dim = n.dim
$$;

select results_eq(
    $$ select l.dim from rag.list_dims('{3:1,7:2.5}/1000000000') as l $$, 'values (3), (7)',
    'the dimensions of a sparse vector'
);
select is_empty(
    $$ select l.dim from rag.list_dims('{}/1000000000') as l $$, 'an empty one has none'
);

-- Without terms: counted on the spot --------------------------------------------------------------

select is(pg_temp.counts(), '{0,0,0}', 'there is nothing');
do $$ begin
    perform pg_temp.store('a.md', 'lag lag');
    perform pg_temp.store('b.md', '备份 and lag');
    perform pg_temp.store('c.md', 'nothing', '/w');
    perform pg_temp.store('d.md', 'lag', '/w');
end $$;
select is(pg_temp.counts(), '{4,3,1}', 'chunks without stored terms are counted');
select is(pg_temp.counts(v), c::bigint[], format('of vault %s', v))
from (values ('/v', '{2,2,1}'), ('/w', '{2,1,0}'), ('/x', '{0,0,0}')) as u (v, c);
select results_eq(
    $$ select d.relative_path, u.passes
    from rag.unstored_terms('{"vault": "/v", "path_prefix": "b.md"}') as u
    join rag.chunks as c on c.id = u.chunk_id join rag.documents as d on d.id = c.document_id
    order by 1 $$,
    $$ values ('a.md', false), ('b.md', true) $$,
    'the vault of a filter holds for all, the rest of it is told'
);

-- fill_terms, store_terms -------------------------------------------------------------------------

select is(rag.fill_terms(3), 3, 'as many chunks as asked for get their terms');
select is(pg_temp.counts(), '{4,3,1}', 'the counts are the same');
select is((select count(*) from rag.unstored_terms()), 1::bigint, 'one is left');
select is(rag.fill_terms(), 1, 'the last one');
select is(rag.fill_terms(), 0, 'none is left');
select is(pg_temp.counts(), '{4,3,1}', 'the counts are the same');
select results_eq(
    $$ select t.scope, t.id = t.chunk_id, t.owner, t.terms
    from rag.chunk_terms as t join rag.chunks as c on c.id = t.chunk_id
    where c.relative_path = 'd.md' $$,
    $$ values ('/w', true, null::uuid, rag.weigh_chunk('lag', '{}', 'd.md', '{}', '{}')) $$,
    'a chunk without a scope counts in its vault'
);
select is_empty('select u.id from rag.uncounted_terms as u', 'filled terms are counted at once');
select results_eq(
    $$ select k.scope, k.chunks from rag.term_counts as k where k.dim = 0 order by k.scope $$,
    $$ values ('/v', 2::bigint), ('/w', 2) $$, 'chunks of each scope are counted as dimension 0'
);

do $$ begin perform pg_temp.store('e.md', 'lag 备份'); end $$;
select lives_ok(
    $$ select rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'e.md' $$,
    'terms are stored'
);
update rag.chunks set has_terms = true where relative_path = 'e.md';
select is(pg_temp.counts(), '{5,4,2}', 'stored terms count before they are counted');
select is((select count(*) from rag.uncounted_terms), 1::bigint, 'they are known as not counted');
select lives_ok(
    $$ select rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'e.md' $$,
    'storing them again is no error'
);
select is(pg_temp.counts(), '{5,4,2}', 'and counts them once');

-- count_terms, and deleting by hand ---------------------------------------------------------------

select ok(rag.count_terms() > 0, 'counting changes counts');
select is(pg_temp.counts(), '{5,4,2}', 'but not what is read');
select is(rag.count_terms(), 0::bigint, 'counting again changes nothing');
delete from rag.documents as d where d.relative_path = 'b.md';
select is(pg_temp.counts(), '{4,3,1}', 'a deleted chunk counts no longer');
select is(
    (select count(*) from rag.chunk_terms as t where t.chunk_id is null), 1::bigint,
    'its terms are kept to take it out of the counts'
);
do $$ begin
    perform pg_temp.store('f.md', 'lag');
    perform rag.store_terms(array_agg(c.id)) from rag.chunks as c where c.relative_path = 'f.md';
    update rag.chunks set has_terms = true where relative_path = 'f.md';
    delete from rag.documents as d where d.relative_path = 'f.md';
end $$;
select is(pg_temp.counts(), '{4,3,1}', 'a chunk that came and went uncounted never counts');
select is(pg_temp.counts('/v'), '{2,2,1}', 'nor in its vault');
select ok(rag.count_terms() > 0, 'counting takes the deleted one out');
select is(pg_temp.counts(), '{4,3,1}', 'what is read stays');
select is_empty(
    $$ select t.id from rag.chunk_terms as t where t.chunk_id is null
    union all select u.id from rag.uncounted_terms as u $$, 'nothing is left of deleted chunks'
);
select is_empty(
    $$ select k.dim from rag.term_counts as k where k.dim = rag.term_dim('b') or k.chunks < 1 $$,
    'terms that no chunk has are not kept'
);
delete from rag.chunks as c where c.relative_path = 'e.md';
select is(pg_temp.counts(), '{3,2,0}', 'deleting a chunk alone counts too');

-- forget, move_vault ------------------------------------------------------------------------------

select lives_ok($$ select * from rag.forget('/v', 'a.md', true) $$, 'a note is forgotten');
select is(pg_temp.counts(), '{2,1,0}', 'with its counts');
select is_empty(
    $$ select t.id from rag.chunk_terms as t where t.chunk_id is null $$, 'and with its terms'
);
select lives_ok($$ select rag.move_vault('/w', '/moved') $$, 'a vault moves');
select is(pg_temp.counts('/moved'), '{2,1,0}', 'and its counts with it');
select is(pg_temp.counts('/w'), '{0,0,0}', 'nothing is left where it was');
select is((select count(*) from rag.term_counts where scope = '/w'), 0::bigint, 'no count either');
select is_empty(
    $$ select * from rag.find_inconsistencies() as f where f.problem ~ 'term' $$,
    'terms and counts are consistent'
);
delete from rag.documents;
select is(pg_temp.counts(), '{0,0,0}', 'without documents nothing counts');

-- count_terms_if_many -----------------------------------------------------------------------------

insert into rag.chunk_terms (id, scope, terms)
select i, '/many', '{1:1}/1000000000' from generate_series(-10000, -1) as i;
insert into rag.uncounted_terms select i from generate_series(-9999, -1) as i;
do $$ begin perform rag.count_terms_if_many(); end $$;
select is((select count(*) from rag.uncounted_terms), 9999::bigint, 'fewer than ten thousand wait');
insert into rag.uncounted_terms values (-10000);
do $$ begin perform rag.count_terms_if_many(); end $$;
select is((select count(*) from rag.uncounted_terms), 0::bigint, 'ten thousand are counted');

select * from finish();
rollback;
