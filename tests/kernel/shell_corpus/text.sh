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
