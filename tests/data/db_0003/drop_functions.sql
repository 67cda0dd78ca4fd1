-- Drops every view and function of schema rag, so that functions/*.sql can be made anew whatever
-- their signatures were. Tables and data are not touched. `rag db init` runs this before
-- migrations; with psql run it before functions/*.sql when a newer pyrag replaces an older one.

do $$
declare
    v_names text;
begin
    select string_agg(c.oid::regclass::text, ', ') into v_names
    from pg_catalog.pg_class as c
    where c.relnamespace = 'rag'::regnamespace and c.relkind = 'v';
    if v_names is not null then
        execute 'drop view ' || v_names;
    end if;
    select string_agg(p.oid::regprocedure::text, ', ') into v_names
    from pg_catalog.pg_proc as p
    where p.pronamespace = 'rag'::regnamespace;
    if v_names is not null then
        execute 'drop routine ' || v_names;
    end if;
end;
$$;
