-- Tests of db/functions/common.sql: checks that the other files use.

begin;
select plan(19);

select is(rag.check_top_k(n), n, format('top_k %s is allowed', n))
from unnest(array[1, 5, 20]) as u (n);

select throws_ok(
    format('select rag.check_top_k(%s)', n), 'RG001',
    format('top_k must be between 1 and 20, got %s', n), format('top_k %s is refused', n)
)
from unnest(array['0', '-1', '21', '2147483647', 'null']) as u (n);

select is(rag.check_dim(1024), 1024, 'dimension 1024 is allowed');
select is(rag.check_dim(1024, null), 1024, 'no vector is allowed');
select is(
    rag.check_dim(1024, array_fill(1, array[1024])::public.vector), 1024,
    'a vector of 1024 dimensions is allowed'
);
select throws_ok(
    format('select rag.check_dim(%s)', n), 'RG004',
    format('embedding dimension must be 1024, got %s', n), format('dimension %s is refused', n)
)
from unnest(array['1023', '0', '-1024', 'null']) as u (n);
select throws_ok(
    format('select rag.check_dim(1024, array_fill(1, array[%s])::public.vector)', n), 'RG004',
    format('the vector has %s dimensions, expected 1024', n),
    format('a vector of %s dimensions is refused', n)
)
from unnest(array[3, 1023, 1025]) as u (n);
select throws_ok(
    'select rag.check_dim(3, ''[1,2,3]'')', 'RG004', 'embedding dimension must be 1024, got 3',
    'a dimension that fits the vector, but not the table, is refused'
);

select * from finish();
rollback;
