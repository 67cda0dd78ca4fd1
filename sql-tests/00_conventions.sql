-- The rules for the SQL of this project, asked of the catalogue. A failing test lists what breaks
-- its rule.

begin;
select plan(24);

-- Comments: \d+ and \df+ are the manual ----------------------------------------------------------

select isnt(
    obj_description('rag'::regnamespace, 'pg_namespace'), null, 'schema rag has a comment'
);

select is_empty($$
    select c.oid::regclass from pg_class as c
    where c.relnamespace = 'rag'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
        and obj_description(c.oid, 'pg_class') is null
$$, 'every table and view has a comment');

select is_empty($$
    select a.attrelid::regclass, a.attname
    from pg_attribute as a join pg_class as c on c.oid = a.attrelid
    where c.relnamespace = 'rag'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
        and a.attnum > 0 and not a.attisdropped
        and col_description(a.attrelid, a.attnum) is null
$$, 'every column has a comment');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'rag'::regnamespace
        and obj_description(p.oid, 'pg_proc') is null
$$, 'every function has a comment');

select is_empty($$
    select p.oid::regprocedure, r.found[1]
    from pg_proc as p, regexp_matches(p.prosrc, 'errcode = ''(RG\d+)''', 'g') as r (found)
    where p.pronamespace = 'rag'::regnamespace
        and obj_description(p.oid, 'pg_proc') !~ (r.found[1] || '|Raises\s+as\s+rag\.')
$$, 'the comment of a function names each code that it raises');

-- Functions ---------------------------------------------------------------------------------------

select is_empty($$
    select p.oid::regprocedure, l.lanname
    from pg_proc as p join pg_language as l on l.oid = p.prolang
    where p.pronamespace = 'rag'::regnamespace and l.lanname not in ('sql', 'plpgsql')
$$, 'functions are written in sql or plpgsql');

select is_empty($$
    select p.oid::regprocedure, arg.name
    from pg_proc as p, unnest(p.proargnames, p.proargmodes) as arg (name, mode)
    where p.pronamespace = 'rag'::regnamespace
        and coalesce(arg.mode, 'i') in ('i', 'b', 'v') and arg.name not like 'p\_%'
$$, 'every input parameter starts with p_');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'rag'::regnamespace
        and coalesce(cardinality(array_remove(p.proargnames[:p.pronargs], '')), 0) < p.pronargs
$$, 'every input parameter has a name');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p join pg_language as l on l.oid = p.prolang
    where p.pronamespace = 'rag'::regnamespace and l.lanname = 'plpgsql'
        and not coalesce(p.proconfig::text like '%search_path=pg_catalog, public, pg_temp%', false)
$$, 'plpgsql functions pin search_path, with pg_temp last');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p join pg_language as l on l.oid = p.prolang
    where p.pronamespace = 'rag'::regnamespace and l.lanname = 'sql' and p.prosqlbody is null
$$, 'sql functions have a standard body');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p join pg_language as l on l.oid = p.prolang
    where p.pronamespace = 'rag'::regnamespace and l.lanname = 'sql'
        and (p.proisstrict or p.proconfig is not null)
$$, 'sql functions are neither STRICT nor have a SET, which would stop inlining');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p join pg_language as l on l.oid = p.prolang
    where p.pronamespace = 'rag'::regnamespace and l.lanname = 'sql' and p.provolatile = 'v'
$$, 'sql functions only read: they are stable or immutable');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'rag'::regnamespace and p.provolatile <> 'v'
        and (p.proparallel = 's') = (p.proname in (
            'list_index_candidates', 'find_nearest', 'rank_chunks', 'retrieve', 'assert_retrieves',
            'search_chunks', 'explain_search', 'index_recall', 'explain_retrieval'
        ))
$$, 'readers are parallel safe, but for the one that sets parameters and those that call it');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'rag'::regnamespace and p.provolatile = 'v' and p.proparallel <> 'u'
$$, 'writers are not parallel safe');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'rag'::regnamespace and p.provolatile <> 'v'
        and p.prosrc ~* '\m(insert\s+into|delete\s+from|for\s+update|update\s+rag\.|pg_advisory)'
$$, 'a function that writes or locks is volatile');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'rag'::regnamespace and p.prosecdef
$$, 'nothing runs as security definer');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p join pg_language as l on l.oid = p.prolang
    where p.pronamespace = 'rag'::regnamespace and l.lanname = 'plpgsql'
        and regexp_count(p.prosrc, '\mraise\s+exception\M', 1, 'i')
        <> regexp_count(p.prosrc, 'errcode = ''RG\d{3}''')
$$, 'every raise names an RG code');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'rag'::regnamespace
        and p.prosrc ~* '\m(execute\M|when\s+others)'
$$, 'no dynamic SQL, no when others');

-- What may not depend on a function, because each installation makes them anew ------------------

select is_empty($$
    select pg_describe_object(d.classid, d.objid, d.objsubid), p.oid::regprocedure
    from pg_depend as d
    join pg_proc as p on d.refclassid = 'pg_proc'::regclass and p.oid = d.refobjid
    where p.pronamespace = 'rag'::regnamespace
        and d.classid not in ('pg_proc'::regclass, 'pg_rewrite'::regclass)
$$, 'no default, generated column, constraint, index, policy or trigger calls a function of rag');

select is_empty($$
    select t.tgrelid::regclass, t.tgname
    from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
    where c.relnamespace = 'rag'::regnamespace and not t.tgisinternal
$$, 'there are no triggers');

select is_empty($$
    select p.oid::regprocedure, c.oid::regclass
    from pg_proc as p
    cross join pg_class as c
    where p.pronamespace = 'rag'::regnamespace
        and c.relnamespace = 'rag'::regnamespace and c.relkind in ('v', 'm')
        and pg_get_functiondef(p.oid) ~ ('\mrag\.' || c.relname || '\M')
$$, 'no function reads a view');

-- Tables ------------------------------------------------------------------------------------------

select is_empty($$
    select c.oid::regclass from pg_class as c
    where c.relnamespace = 'rag'::regnamespace and c.relkind = 'r'
        and not exists (
            select 1 from pg_constraint as k where k.conrelid = c.oid and k.contype = 'p'
        )
$$, 'every table has a primary key');

select is_empty($$
    select k.conrelid::regclass, k.conname
    from pg_constraint as k
    where k.connamespace = 'rag'::regnamespace and k.contype = 'f' and not exists (
        select 1 from pg_index as i
        where i.indrelid = k.conrelid and i.indkey[0] = k.conkey[1] and i.indpred is null
    )
$$, 'every foreign key has an index, so that deleting by cascade is no scan');

select is(
    (
        select n.nspname::text
        from pg_extension as e join pg_namespace as n on n.oid = e.extnamespace
        where e.extname = 'vector'
    ), 'public', 'the extension vector lives in public'
);

select * from finish();
rollback;
