-- The words of texts and questions: one tokenizer for both, and how much a word of a chunk weighs.
--
-- A term is a word, an identifier, or two neighbouring CJK characters. Chunks keep their terms as a
-- sparse vector: the dimension is a hash of the term, the value a step from 1 to 15 that says how
-- much the chunk is about it (the BM25 weight without idf). A question's vector holds the idf, so
-- that one inner product is the BM25 score. docs/why.md has the figures.

create or replace function rag.fold_text(p_text text)
    returns text
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    -- lower() knows letters beyond ASCII by the locale of the server: these are the same everywhere
    v_upper constant text :=
        'ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞĀĂĄĆĈĊČĎĐĒĔĖĘĚĜĞĠĢĤĦĨĪĬĮİĴĶĹĻĽŁŃŅŇŊŌŎŐŒŔŖŘŚŜŞŠŢŤ'
        'ŦŨŪŬŮŰŲŴŶŸŹŻŽƁƂƄƆƇƉƊƋƎƏƐƑƓƔƖƗƘƜƝƟƠƢƤƦƧƩƬƮƯƱƲƳƵƷƸƼǍǏǑǓǕǗǙǛǞǠǢǤǦǨǪǬǮǴǶǷǸǺǼǾȀȂȄȆȈ'
        'ȊȌȎȐȒȔȖȘȚȜȞȠȢȤȦȨȪȬȮȰȲȺȻȽȾɁɃɄɅɆɈɊɌɎͰͲͶͿΆΈΉΊΌΎΏΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩΪΫςϏϘϚϜϞϠ'
        'ϢϤϦϨϪϬϮϷϺϽϾϿЀЁЂЃЄЅІЇЈЉЊЋЌЍЎЏАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯѠѢѤѦѨѪѬѮѰѲѴѶѸѺѼѾҀҊ'
        'ҌҎҐҒҔҖҘҚҜҞҠҢҤҦҨҪҬҮҰҲҴҶҸҺҼҾӀӁӃӅӇӉӋӍӐӒӔӖӘӚӜӞӠӢӤӦӨӪӬӮӰӲӴӶӸӺӼӾԀԂԄԆԈԊԌԎԐԒԔԖԘԚԜԞԠԢԤԦ'
        'ԨԪԬԮԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿՀՁՂՃՄՅՆՇՈՉՊՋՌՍՎՏՐՑՒՓՔՕՖႠႡႢႣႤႥႦႧႨႩႪႫႬႭႮႯႰႱႲႳႴႵႶႷႸႹႺႻႼႽႾႿჀჁჂჃ'
        'ჄჅჇჍᎠᎡᎢᎣᎤᎥᎦᎧᎨᎩᎪᎫᎬᎭᎮᎯᎰᎱᎲᎳᎴᎵᎶᎷᎸᎹᎺᎻᎼᎽᎾᎿᏀᏁᏂᏃᏄᏅᏆᏇᏈᏉᏊᏋᏌᏍᏎᏏᏐᏑᏒᏓᏔᏕᏖᏗᏘᏙᏚᏛᏜᏝᏞᏟᏠᏡᏢᏣᏤᏥᏦᏧᏨᏩ'
        'ᏪᏫᏬᏭᏮᏯᏰᏱᏲᏳᏴᏵᲐᲑᲒᲓᲔᲕᲖᲗᲘᲙᲚᲛᲜᲝᲞᲟᲠᲡᲢᲣᲤᲥᲦᲧᲨᲩᲪᲫᲬᲭᲮᲯᲰᲱᲲᲳᲴᲵᲶᲷᲸᲹᲺᲽᲾᲿḀḂḄḆḈḊḌḎḐḒḔḖḘḚḜḞḠḢḤḦ'
        'ḨḪḬḮḰḲḴḶḸḺḼḾṀṂṄṆṈṊṌṎṐṒṔṖṘṚṜṞṠṢṤṦṨṪṬṮṰṲṴṶṸṺṼṾẀẂẄẆẈẊẌẎẐẒẔẞẠẢẤẦẨẪẬẮẰẲẴẶẸẺẼẾỀỂỄỆỈỊ'
        'ỌỎỐỒỔỖỘỚỜỞỠỢỤỦỨỪỬỮỰỲỴỶỸỺỼỾἈἉἊἋἌἍἎἏἘἙἚἛἜἝἨἩἪἫἬἭἮἯἸἹἺἻἼἽἾἿὈὉὊὋὌὍὙὛὝὟὨὩὪὫὬὭὮὯᾈᾉᾊᾋ'
        'ᾌᾍᾎᾏᾘᾙᾚᾛᾜᾝᾞᾟᾨᾩᾪᾫᾬᾭᾮᾯᾸᾹᾺᾼῈῊῌῘῙῚῨῩῪῬῸῺῼℲↃⰀⰁⰂⰃⰄⰅⰆⰇⰈⰉⰊⰋⰌⰍⰎⰏⰐⰑⰒⰓⰔⰕⰖⰗⰘⰙⰚⰛⰜⰝⰞⰟⰠⰡⰢⰣⰤⰥⰦ'
        'ⰧⰨⰩⰪⰫⰬⰭⰮⰯⱠⱢⱣⱤⱧⱩⱫⱭⱮⱯⱰⱲⱵⱾⱿⲀⲂⲄⲆⲈⲊⲌⲎⲐⲒⲔⲖⲘⲚⲜⲞⲠⲢⲤⲦⲨⲪⲬⲮⲰⲲⲴⲶⲸⲺⲼⲾⳀⳂⳄⳆⳈⳊⳌⳎⳐⳒⳔⳖⳘⳚⳜⳞⳠⳢⳫⳭⳲꙀ'
        'ꙂꙄꙆꙈꙊꙌꙎꙐꙒꙔꙖꙘꙚꙜꙞꙠꙢꙤꙦꙨꙪꙬꚀꚂꚄꚆꚈꚊꚌꚎꚐꚒꚔꚖꚘꚚꜢꜤꜦꜨꜪꜬꜮꜲꜴꜶꜸꜺꜼꜾꝀꝂꝄꝆꝈꝊꝌꝎꝐꝒꝔꝖꝘꝚꝜꝞꝠꝢꝤꝦꝨꝪꝬꝮꝹꝻꝽꝾ'
        'ꞀꞂꞄꞆꞋꞍꞐꞒꞖꞘꞚꞜꞞꞠꞢꞤꞦꞨꞪꞫꞬꞭꞮꞰꞱꞲꞳꞴꞶꞸꞺꞼꞾꟀꟂꟄꟅꟆꟇꟉꟐꟖꟘꟵ';
    v_lower constant text :=
        'àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþāăąćĉċčďđēĕėęěĝğġģĥħĩīĭįiĵķĺļľłńņňŋōŏőœŕŗřśŝşšţť'
        'ŧũūŭůűųŵŷÿźżžɓƃƅɔƈɖɗƌǝəɛƒɠɣɩɨƙɯɲɵơƣƥʀƨʃƭʈưʊʋƴƶʒƹƽǎǐǒǔǖǘǚǜǟǡǣǥǧǩǫǭǯǵƕƿǹǻǽǿȁȃȅȇȉ'
        'ȋȍȏȑȓȕȗșțȝȟƞȣȥȧȩȫȭȯȱȳⱥȼƚⱦɂƀʉʌɇɉɋɍɏͱͳͷϳάέήίόύώαβγδεζηθικλμνξοπρστυφχψωϊϋσϗϙϛϝϟϡ'
        'ϣϥϧϩϫϭϯϸϻͻͼͽѐёђѓєѕіїјљњћќѝўџабвгдежзийклмнопрстуфхцчшщъыьэюяѡѣѥѧѩѫѭѯѱѳѵѷѹѻѽѿҁҋ'
        'ҍҏґғҕҗҙқҝҟҡңҥҧҩҫҭүұҳҵҷҹһҽҿӏӂӄӆӈӊӌӎӑӓӕӗәӛӝӟӡӣӥӧөӫӭӯӱӳӵӷӹӻӽӿԁԃԅԇԉԋԍԏԑԓԕԗԙԛԝԟԡԣԥԧ'
        'ԩԫԭԯաբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆⴀⴁⴂⴃⴄⴅⴆⴇⴈⴉⴊⴋⴌⴍⴎⴏⴐⴑⴒⴓⴔⴕⴖⴗⴘⴙⴚⴛⴜⴝⴞⴟⴠⴡⴢⴣ'
        'ⴤⴥⴧⴭꭰꭱꭲꭳꭴꭵꭶꭷꭸꭹꭺꭻꭼꭽꭾꭿꮀꮁꮂꮃꮄꮅꮆꮇꮈꮉꮊꮋꮌꮍꮎꮏꮐꮑꮒꮓꮔꮕꮖꮗꮘꮙꮚꮛꮜꮝꮞꮟꮠꮡꮢꮣꮤꮥꮦꮧꮨꮩꮪꮫꮬꮭꮮꮯꮰꮱꮲꮳꮴꮵꮶꮷꮸꮹ'
        'ꮺꮻꮼꮽꮾꮿᏸᏹᏺᏻᏼᏽაბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰჱჲჳჴჵჶჷჸჹჺჽჾჿḁḃḅḇḉḋḍḏḑḓḕḗḙḛḝḟḡḣḥḧ'
        'ḩḫḭḯḱḳḵḷḹḻḽḿṁṃṅṇṉṋṍṏṑṓṕṗṙṛṝṟṡṣṥṧṩṫṭṯṱṳṵṷṹṻṽṿẁẃẅẇẉẋẍẏẑẓẕßạảấầẩẫậắằẳẵặẹẻẽếềểễệỉị'
        'ọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹỻỽỿἀἁἂἃἄἅἆἇἐἑἒἓἔἕἠἡἢἣἤἥἦἧἰἱἲἳἴἵἶἷὀὁὂὃὄὅὑὓὕὗὠὡὢὣὤὥὦὧᾀᾁᾂᾃ'
        'ᾄᾅᾆᾇᾐᾑᾒᾓᾔᾕᾖᾗᾠᾡᾢᾣᾤᾥᾦᾧᾰᾱὰᾳὲὴῃῐῑὶῠῡὺῥὸὼῳⅎↄⰰⰱⰲⰳⰴⰵⰶⰷⰸⰹⰺⰻⰼⰽⰾⰿⱀⱁⱂⱃⱄⱅⱆⱇⱈⱉⱊⱋⱌⱍⱎⱏⱐⱑⱒⱓⱔⱕⱖ'
        'ⱗⱘⱙⱚⱛⱜⱝⱞⱟⱡɫᵽɽⱨⱪⱬɑɱɐɒⱳⱶȿɀⲁⲃⲅⲇⲉⲋⲍⲏⲑⲓⲕⲗⲙⲛⲝⲟⲡⲣⲥⲧⲩⲫⲭⲯⲱⲳⲵⲷⲹⲻⲽⲿⳁⳃⳅⳇⳉⳋⳍⳏⳑⳓⳕⳗⳙⳛⳝⳟⳡⳣⳬⳮⳳꙁ'
        'ꙃꙅꙇꙉꙋꙍꙏꙑꙓꙕꙗꙙꙛꙝꙟꙡꙣꙥꙧꙩꙫꙭꚁꚃꚅꚇꚉꚋꚍꚏꚑꚓꚕꚗꚙꚛꜣꜥꜧꜩꜫꜭꜯꜳꜵꜷꜹꜻꜽꜿꝁꝃꝅꝇꝉꝋꝍꝏꝑꝓꝕꝗꝙꝛꝝꝟꝡꝣꝥꝧꝩꝫꝭꝯꝺꝼᵹꝿ'
        'ꞁꞃꞅꞇꞌɥꞑꞓꞗꞙꞛꞝꞟꞡꞣꞥꞧꞩɦɜɡɬɪʞʇʝꭓꞵꞷꞹꞻꞽꞿꟁꟃꞔʂᶎꟈꟊꟑꟗꟙꟶ';
    v_text text := case
        when p_text is nfkc normalized then p_text else normalize(p_text, nfkc)
    end;
begin
    v_text := lower(v_text collate "C");
    if v_text ~ ('[' || v_upper || ']') then
        v_text := translate(v_text, v_upper, v_lower);
    end if;
    return v_text;
end;
$$;

comment on function rag.fold_text(text) is
'A text as it is compared: NFKC and lower case, letter by letter as Unicode has it, the final sigma
like any other. The same on every server, whatever its locale.';

create or replace function rag.lexical_terms(p_text text)
    returns text[]
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    -- sets are unnested in select lists, which is quicker here than in from
    -- letters, marks and digits of scripts that put spaces between words
    v_letters constant text := 'a-z0-9\u00df-\u00f6\u00f8-\u02c1\u0300-\u0373\u0377-\u0386'
        '\u0388-\u0481\u0483-\u0559\u0560-\u0588\u0591-\u05bd\u05d0-\u05ea\u0610-\u061a'
        '\u0620-\u0669\u066e-\u06d3\u06d5-\u0963\u0966-\u0e3e\u0e40-\u10fa\u10fc-\u1fff'
        '\u2c00-\u2dff\ua640-\uabff';
    v_cjk constant text := '\u3005\u3007\u3040-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff'
        '\U00020000-\U0003134f';
    -- without this punctuation most Chinese text needs no folding, which costs more
    v_text constant text := rag.fold_text(
        regexp_replace(
            -- invisible characters that may stand inside a word
            case
                when p_text ~ '[\u00ad\u200b-\u200d\u2060\ufeff]'
                    then regexp_replace(p_text, '[\u00ad\u200b-\u200d\u2060\ufeff]+', '', 'g')
                else p_text
            end, '[，：；？！（）…～]+', ' ', 'g'
        )
    );
    v_tokens constant text := regexp_replace(v_text, '[^-_.+#' || v_letters || ']+', ' ', 'g');
    v_words constant text := replace(replace(replace(replace(replace(
        v_tokens, '-', ' '), '_', ' '), '.', ' '), '+', ' '), '#', ' ');
    -- the CJK characters, each run of them between two blanks
    v_runs constant text := ' ' || regexp_replace(v_text, '[^' || v_cjk || ']+', ' ', 'g') || ' ';
    v_terms text[] := array(
        select coalesce((ts_lexize('english_stem', w.word))[1], w.word)
        from (select unnest(string_to_array(v_words, ' ')) as word) as w
        where w.word <> ''
    ) || array(
        -- a version as it stands, and without its v
        select unnest(
            case when t.token ~ '^v[0-9]' then array[t.token, substr(t.token, 2)] else array[t.token] end
        )
        from (
            select rtrim(
                (regexp_matches(v_tokens, '[^- _.+#]+[-_.+#][^ ]*', 'g'))[1], '-_.'
            ) as token
        ) as t
        where t.token ~ '[-_.+#]'
    );
    v_characters text[];
begin
    if p_text ~ '[a-z]{2}[A-Z][a-z]{2}' then
        v_terms := v_terms || array(
            select coalesce((ts_lexize('english_stem', w.word))[1], w.word)
            from (
                select unnest(string_to_array(lower(regexp_replace(
                    (regexp_matches(
                        p_text, '[A-Za-z0-9]*[a-z]{2}[A-Z][a-z]{2}[A-Za-z0-9]*', 'g'
                    ))[1],
                    '([a-z0-9])(?=[A-Z])|([A-Z])(?=[A-Z][a-z])', '\1\2 ', 'g'
                ) collate "C"), ' ')) as word
            ) as w
            where length(w.word) > 2
        );
    end if;
    if v_runs ~ '[^ ]' then
        v_characters := string_to_array(v_runs, null);
        v_terms := v_terms || array(
            select p.one || p.two
            from (select unnest(v_characters) as one, unnest(v_characters[2:]) as two) as p
            where p.one <> ' ' and p.two <> ' '
        );
        if v_runs ~ ' [^ ] ' then
            v_terms := v_terms || array(
                select trim(m.found[1]) from regexp_matches(v_runs, ' [^ ](?= )', 'g') as m (found)
            );
        end if;
    end if;
    return v_terms;
end;
$$;

comment on function rag.lexical_terms(text) is
'The terms of a text, as often as they occur, in no order: words by their English stem (a word of
another language or without a stem as it is, lower case); words joined by _ . or - as they stand and
by their parts, CamelCase likewise, c++ and c# too; of CJK text each two neighbouring characters, and a character that
stands alone. The text is folded first (rag.fold_text). A null or empty text has none. Examples:
select rag.lexical_terms(''重置数据库密码'');
select rag.lexical_terms(''API-503: tidb_mem_quota_query in v8.5.1'');';

create or replace function rag.is_stop_word(p_term text)
    returns boolean
    language sql
    immutable
    parallel safe
return ts_lexize('english_stem', p_term) = '{}';

comment on function rag.is_stop_word(text) is
'Whether a term is one of the English words that say nothing about a subject, such as the or what.';

create or replace function rag.without_question_words(p_question text)
    returns text
    language sql
    immutable
    parallel safe
return regexp_replace(
    p_question,
    '请问|請問|如何|怎[么麼样樣]|怎么样|怎麼樣|怎么办|怎麼辦|为什么|為什麼|[为為]何|(?<!任)何[时時处處]|'
    '[是有]?[什甚][么麼]样?是?|是否|能否|可否|能不能|有没有|是不是|有?多少|多久|[谁誰]|几[点點]|'
    '[是有]?哪[一几]?[些个個里裡儿年种種家位]|几[个個种種次年月天条台位](?=[\u3400-\u9fff])|几(?=[个個种種次年月天条台位])|'
    '(?<=[\u3400-\u9fff]{2})[吗嗎呢](?=[^\u3400-\u9fff]*$)',
    ' ', 'g'
);

comment on function rag.without_question_words(text) is
'A question with blanks in place of the Chinese words that only make it one, such as 如何 and 什么, so
that no pair of characters reaches across their borders. Particles that are parts of words too, such
as 吧 in 酒吧, stay.';

create or replace function rag.question_terms(p_question text)
    returns text[]
    language sql
    immutable
    parallel safe
begin atomic
    with
    whole as (
        select
            t.term,
            min(t.position) as position
        from unnest(rag.lexical_terms(p_question)) with ordinality as t (term, position)
        group by t.term
    ),
    -- a character that stands alone only because of what was cut is no term
    telling as (
        select w.*
        from whole as w
        where
            w.term in (
                select k.term
                from unnest(rag.lexical_terms(rag.without_question_words(p_question))) as k (term)
            )
            and not rag.is_stop_word(w.term)
    )
    select
        case
            when exists (select 1 from telling)
                then (select (array_agg(t.term order by t.position))[:1000] from telling as t)
                    -- what is counted (多少次) stands alone in texts too: 300 次
                    || array(
                        select distinct m.found[1] as counted
                        from regexp_matches(
                            p_question, '(?:多少|几)([\u3400-\u9fff])(?![\u3400-\u9fff])', 'g'
                        ) as m (found)
                        order by counted
                    )
            else coalesce(
                (select (array_agg(w.term order by w.position))[:1000] from whole as w), '{}'
            )
        end;
end;

comment on function rag.question_terms(text) is
'The terms that a question is searched by, each once, at most 1000: those of rag.lexical_terms
without English stop words and Chinese question words, unless it has nothing else.
Example: select rag.question_terms(''如何重置密码？'');';

create or replace function rag.term_dim(p_term text)
    returns integer
    language sql
    immutable
    parallel safe
return (1 + (hashtextextended(p_term, 0) & 1073741823) % 1000000000)::integer;

comment on function rag.term_dim(text) is
'The dimension of a term in the sparse vectors: from 1 to 1000000000, by its hash. Two terms share
one as good as never.';

create or replace function rag.sparse_vector(p_dims integer[], p_values double precision[])
    returns public.sparsevec
    language sql
    immutable
    parallel safe
begin atomic
    select
        (
            '{' || coalesce(string_agg(e.dim || ':' || e.value, ',' order by e.dim), '')
            || '}/1000000000'
        )::public.sparsevec
    from unnest(p_dims, p_values) as e (dim, value)
    where e.dim > 0;
end;

comment on function rag.sparse_vector(integer[], double precision[]) is
'The sparse vector with these values at these dimensions (from 1), 0 elsewhere.';

create or replace function rag.bm25_k1()
    returns double precision
    language sql
    immutable
    parallel safe
return 1.2;

comment on function rag.bm25_k1() is
'k1 of BM25: how soon a term that recurs in a chunk counts no more.';

create or replace function rag.weigh_terms(p_terms text[])
    returns public.sparsevec
    language plpgsql
    immutable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    -- a sparse vector holds no more
    v_terms constant text[] := case
        when cardinality(p_terms) > 16000 then p_terms[:16000] else p_terms
    end;
    v_usual_length constant double precision := 300;  -- terms, where b does nothing
    v_k constant double precision := rag.bm25_k1()
        * (0.25 + 0.75 * coalesce(cardinality(p_terms), 0) / v_usual_length);
begin
    return (
        select
            (
                '{' || coalesce(
                    string_agg(
                        t.dim || ':' || greatest(1, (15 * t.frequency / (t.frequency + v_k))::integer),
                        ','
                    ), ''
                ) || '}/1000000000'
            )::sparsevec
        from (
            select d.dim, count(*) as frequency
            from (select rag.term_dim(unnest(v_terms)) as dim) as d
            group by d.dim
        ) as t
    );
end;
$$;

comment on function rag.weigh_terms(text[]) is
'The terms of a chunk as a sparse vector: at rag.term_dim(term) the BM25 weight f (k1 + 1) / (f + k1
(1 - b + b length / 300)) in fifteen steps, 15 being the most it can reach (k1 + 1); f is how often
the term occurs, length the number of all, k1 = rag.bm25_k1(), b = 0.75 (Robertson and Zaragoza, "The
Probabilistic Relevance Framework", 2009). The usual length is a constant, not the mean of what is
stored, so that one chunk does not change the weights of others.';

create or replace function rag.lexical_text(
    p_content text,
    p_heading_path text[],
    p_relative_path text,
    p_tags text[],
    p_frontmatter jsonb
)
    returns text
    language sql
    immutable
    parallel safe
return concat_ws(
    chr(10),
    p_content,
    array_to_string(p_heading_path, chr(10)),
    array_to_string(p_heading_path, chr(10)),
    p_relative_path,
    array_to_string(p_tags, chr(10)),
    p_frontmatter ->> 'title',
    p_frontmatter ->> 'aliases'
);

comment on function rag.lexical_text(text, text[], text, text[], jsonb) is
'What the lexical search reads of a chunk: its content once, its heading path twice, its path, tags,
and the title and aliases of the note once. docs/why.md has what was measured.';

create or replace function rag.weigh_chunk(
    p_content text,
    p_heading_path text[],
    p_relative_path text,
    p_tags text[],
    p_frontmatter jsonb
)
    returns public.sparsevec
    language sql
    immutable
    parallel safe
return rag.weigh_terms(
    rag.lexical_terms(
        rag.lexical_text(p_content, p_heading_path, p_relative_path, p_tags, p_frontmatter)
    )
);

comment on function rag.weigh_chunk(text, text[], text, text[], jsonb) is
'The terms of a chunk as a sparse vector, from its columns: rag.weigh_terms of rag.lexical_terms of
rag.lexical_text.';
