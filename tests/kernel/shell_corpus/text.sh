=== grep count
grep -c ERROR logs/app.log
=== grep with numbers
grep -n ERROR logs/app.log
=== grep inverted and insensitive
grep -iv the words.txt
=== grep only the match
grep -oE 'code=[0-9]+' logs/app.log | sort | uniq -c | sort -rn
=== grep recursively
grep -rn TODO src | sort
=== grep files that match
grep -rl import src; grep -L import src/main.py
=== grep context
grep -A1 -B1 WARN logs/app.log
=== grep finds nothing
grep nothing words.txt; echo "status $?"
=== grep fixed and word
grep -F 'a.b' words.txt; grep -w fox words.txt
=== grep perl classes
grep -P '^\d{4}-\d{2}-02' logs/app.log | wc -l
=== sed substitute
sed 's/fox/cat/g' words.txt
=== sed delete blank lines
sed '/^$/d' words.txt
=== sed print a range
sed -n '2,3p' words.txt
=== sed in place
sed -i 's/^port=.*/port=6543/' config.ini && grep -n port config.ini
=== sed groups
sed -E 's/^([a-z]+) ([a-z]+).*/\2 \1/' words.txt
=== sed several expressions
sed -e '1d' -e 's/dog/DOG/' -e '$d' words.txt
=== sed insert and append
sed -e '1i\first' -e '$a\last' a.txt
=== sed between patterns
sed -n '/\[db\]/,/\[web\]/p' config.ini
=== awk sums a column
awk -F, 'NR>1 {s+=$4} END {print s}' people.csv
=== awk filters
awk -F, '$2>30 && $3=="Berlin" {print $1}' people.csv
=== awk groups
awk -F, 'NR>1 {n[$3]++; s[$3]+=$4} END {for (c in n) printf "%s %d %.1f\n", c, n[c], s[c]/n[c]}' people.csv | sort
=== awk formats
awk -F, 'NR>1 {printf "%-8s|%5d|\n", $1, $2}' people.csv
=== awk begin and variables
awk -v min=40 'BEGIN {FS=","; OFS=";"} NR>1 && $2>=min {print $1,$2}' people.csv
=== awk string functions
awk '{print toupper(substr($1,1,1)) substr($1,2), length($0)}' words.txt
=== awk splits
echo 'a:b:c' | awk '{n=split($0,p,":"); for(i=n;i>0;i--) printf "%s ", p[i]; print ""}'
=== awk gsub and match
awk 'match($0, /ms=[0-9]+/) {print substr($0, RSTART+3, RLENGTH-3)}' logs/app.log | sort -n | tail -1
=== awk unique lines
awk '!seen[$0]++' numbers.txt
=== awk last field and count
awk '{print NF, $NF}' words.txt
=== sort numerically
sort -n numbers.txt | tr '\n' ' '; echo
=== sort by a column
tail -n +2 people.csv | sort -t, -k2,2n -k1,1r
=== sort unique reversed
sort -ru numbers.txt
=== uniq counts
cut -d' ' -f3 logs/app.log | sort | uniq -c
=== uniq duplicates
sort numbers.txt | uniq -d
=== cut fields
cut -d, -f1,3 people.csv | head -3
=== cut characters
cut -c1-5 a.txt
=== paste
paste -d, a.txt b.txt
=== paste in a row
paste -sd+ numbers.txt
=== join
join -t, <(tail -n +2 people.csv | sort) <(tail -n +2 orders.csv | cut -d, -f2,3 | sort)
=== comm
comm -12 a.txt b.txt; comm -23 a.txt b.txt
=== diff
diff a.txt b.txt; echo $?
=== diff unified
diff -u a.txt b.txt | tail -n +3
=== tr
echo 'Hello World' | tr 'a-z' 'A-Z' | tr -d 'L' | tr -s ' '
=== tr complement
echo 'a1b2-c3' | tr -cd '0-9\n'
=== rev and tac
rev a.txt; tac a.txt
=== head and tail
head -n 2 words.txt; echo --; tail -n 2 words.txt; head -c 3 a.txt; echo
=== wc
wc -l < words.txt; wc -w < words.txt; wc -c < a.txt
=== nl
nl a.txt
=== cat numbers
cat -n a.txt
=== column
printf 'a b\nlonger c\n' | column -t
=== fold
echo abcdefghij | fold -w 4
=== expand and unexpand
printf 'a\tb\n' | expand -t 4
=== tee
echo data | tee copy.txt | wc -c; cat copy.txt
=== xargs
printf '1\n2\n3\n' | xargs echo sum
=== xargs one at a time
printf 'a\nb\n' | xargs -n1 -I{} echo "<{}>"
=== word frequencies
tr -s ' ' '\n' < words.txt | tr 'A-Z' 'a-z' | grep . | sort | uniq -c | sort -k1,1nr -k2 | head -3
=== status codes
awk '{print $8}' logs/access.log | sort | uniq -c
=== requests by address
awk '{c[$1]++} END {for (a in c) print c[a], a}' logs/access.log | sort -rn
=== errors by day
grep ERROR logs/app.log | cut -d' ' -f1 | uniq -c
=== shuffled and sorted again
shuf numbers.txt | sort -n | head -1
=== split a file
split -l 2 numbers.txt part_ && ls part_* && wc -l < part_aa
=== printf table
while IFS=, read -r name age city _; do printf '%-6s %3s %s\n' "$name" "$age" "$city"; done < people.csv
=== bc
for e in '1+1' '2.5*2' '2^64' '10/3' '10/4' '7%3' '-7/2' '-7%3' '5.5%2' '2^10' '2^-1' '2^0' '-2^2' '2^3^2' '(1+2)*3' '1.10+2.20' '.5+.5' '.5-.5' '-.5' '0.25' '1.5*1.5' '1.005*100' '1 < 2' '2 <= 1' '1.0 == 1' '1 != 1' '!0' '1 && 0' '0 || 3' '0' '00012' '1.500' '10.5-0.25' '3.14*2' '5.0/2' '100*1.08' '2*3.14159*2' '--5' '1--1' '2 -3' '0*5.5' '2>1' '1e3' '1/0' '5 %0' '(1' '1+' 'foo' 'foo+1' '1;2' '"hi"' '1,2' '$' 'sqrt(2)' 'sqrt(16)' 'sqrt(2.0000)' 'length(123.45)' 'length(0)' 'scale(1.23)' 'FF' 'A' '1.2.3' 'sqrt(-1)' '10 ^ 1.5' '2^0.5' 'x=5' 'x=5; x*2' '(x=5)' 'x=y=3; x+y' 'x=2; x^=3; x' 'x+=4; x' 's(1)' '1==1==1' '3*-2' '2^(3+1)' '0.1+0.2' '12345678901234567890*98765432109876543210' '1.23456789*9.87654321' '1/3*3' '5 > 3 && 2 > 1' ';' '' '   ' '1 ; ; 2' 'quit
5' '9.' '1 /* c */ + 1' '1 # c'; do echo "[$e]"; echo "$e" | bc 2>/dev/null; done
=== bc with scale
for s in 0 2 5 10; do for e in '10/3' '1/3' '2/3' '-2/3' '7.5%2' '1.1^10' 'sqrt(2)' '1.23456*1.23456' '2^-3' '100/7' '.001/1' '0/3' '1.05^10*1000' '10%3' '1234.5678/1' '(3.5+4.25)/2' '1.5^-2' '3*0.333333' 'length(.00012)' 'scale(1/3)'; do echo "scale=$s; $e" | bc; done; done
=== bc -l
for e in 'e(1)' '4*a(1)' 's(1)' 'c(1)' 'l(2)' 'l(10)' 'e(0)' 'e(-5)' 'e(10)' 'a(0.5)' 's(0)' 'c(0)' 's(100)' 'c(3.14159)' '1/3' 'sqrt(2)' 'scale=5; e(2)' 'scale=40; 4*a(1)' 'e(0.5*l(2))' 'l(100)/l(10)' '0.5 < 0.6' '7 > 5' '2^0.5' 'a(-1)' 'a(1000)' 's(-2)' 'e(2.5)' '10/4' 'scale=2; 10/3' 'x=3; x*x' 'l(1)'; do echo "[$e] $(echo "$e" | bc -l)"; done
=== bc in other bases
for e in 'obase=16; 255' 'obase=2; 10' 'ibase=16; FF' 'ibase=2; 1011' 'obase=16; ibase=2; 11111111' 'obase=8; 64' 'ibase=8; 17' 'obase=16; 0' 'obase=16; -255' 'obase=2; .5' 'obase=16; 10.5' 'scale=5; obase=2; .1' 'ibase=16; A.8' 'obase=16; 4294967295' 'ibase=2; 2' 'ibase=2; 102' 'obase=2; 3.75' 'ibase=16; obase=10; FF' 'ibase=16; obase=A; FF' 'obase=7; 100.25' 'ibase=3; 1.1' 'ibase=3; scale=5; 1.11111' 'obase=16;x=3;x' 'ibase' 'scale=3;scale' 'obase=12; 1.001'; do echo "[$e] $(echo "$e" | bc)"; done
=== bc with long numbers
echo '2^1000' | bc; echo '2^300/3^20' | bc -l; echo '-(2^230)' | bc; echo '10^67; 10^68; 10^69; 10^70; -10^67; -10^68; -10^69' | bc
=== bc with lines
printf '1+1\n2+2\nx=3\nx*x\n' | bc; bc <<< 'scale=3; 22/7'; bc <<EOF
a = 5
b = 2
scale = 4
a / b
EOF
echo '5+5' > p.bc; bc p.bc < /dev/null; bc -q p.bc <<< 7; bc -l <<< '1/8'; bc <(echo '1+2') < /dev/null; echo $?; bc < /dev/null; echo $?; echo '1/0' | bc 2>/dev/null; echo $?; echo '1 +' | bc 2>/dev/null; echo $?; printf '1/0\n3\n' | bc 2>/dev/null; echo '7; 1/0; 8' | bc 2>/dev/null; bc nope < /dev/null 2>/dev/null; echo $?; echo "5 > 3" | bc; seq 10 | paste -sd+ | bc
=== expr
t() { expr "$@" 2>/dev/null; echo "= $?"; }; t 1 + 2; t 2 + 3 \* 4; t 10 - 2 - 3; t 1 + 2 + 3; t \( 1 + 2 \) \* 3; t 7 / 2; t -7 / 2; t -7 % 3; t 7 % -3; t 0; t ""; t 5 - 5; t 1 / 0; t a + 1; t 1 +; t; t 3 \< 10; t 3 \> 10; t abc \< abd; t a = a; t a = b; t a != b; t 1 = 01; t 1 == 1; t "" \| b; t a \| b; t 0 \| 0; t "" \| ""; t a \& b; t a \& 0; t "" \& a; t abc : 'a.c'; t abc : 'b'; t abc : '.*'; t abcdef : 'abc\(.*\)'; t abc : 'x\(.*\)'; t file.txt : '.*\.\(.*\)'; t /a/b/c.txt : '.*/\(.*\)'; t 123 : '[0-9]*$'; t 12a : '[0-9]*$'; t 12 : '^[0-9]\+$'; t abc : '[[:alpha:]]*'; t 'a]b' : '[]a]*'; t 'a^' : '[a^]*'; t xyz : '[^a-w]*'; t length hello; t substr hello 2 3; t index hello lo; t match abc 'a\(.\)c'; t substr hello 0 3; t substr hello 2 99; t length "" ; t index abc x; t 5 + 3 \> 7; t 2 \* 3 = 6; t a b; t 1 2; t \( 1; t \); t 99999999999999999999 + 1; t 1 \<= 1; t 2 \>= 3; t -- 1 + 1; t + length; t length + length; t abc : '\(a\)\(b\)'; t aab : '\(a\)\1b'; t abcabc : '\(abc\)*'; t "a b" : 'a b'; t 'a*b' : 'a\*b'; t '*a' : '*a'; t 1-1; t 2022-01-02 : '\([0-9]*\)-'; t a+b : 'a+b'; t 'a{2}' : 'a{2}'; t aa : 'a\{2\}'; t 'x.y' : '[^.]*'; t 'a$b' : 'a$b'; t 007 + 1; t -0; t 00; t "a
b" : '.*'; t v1.2.3 : 'v\([0-9.]*\)'; t ab : 'a\|b'; t 'a\b' : 'a[\]b'; t ' ' : '[[:space:]]'; t AB12 : '[[:upper:][:digit:]]*'; t hello : 'h.*l'; t foo.tar.gz : '\(.*\)\.tar\.gz'
=== expr in a loop
i=0; while [ `expr $i \< 5` -eq 1 ]; do i=`expr $i + 1`; done; echo $i
