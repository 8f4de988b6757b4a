=== make and list
mkdir -p x/y/z && touch x/a x/y/b && find x | sort
=== find by name
find . -name '*.py' | sort
=== find by type and depth
find . -maxdepth 1 -type d | sort
=== find and exec
find src -name '*.py' -exec wc -l {} \; | sort
=== find and exec many
find src -name '*.py' -exec grep -l TODO {} + | sort
=== find not
find src -type f ! -name '*.py'
=== find and delete
find . -name '*.txt' -delete; ls
=== find with size
head -c 2000 /dev/zero > big.bin; find . -size +1k -type f | sort | grep bin
=== find empty
touch none; mkdir void; find . -maxdepth 1 -empty | sort
=== find print0
find src -name '*.py' -print0 | xargs -0 -n1 basename | sort
=== find path and prune
find . -path ./src -prune -o -type f -name '*.log' -print | sort
=== copy and compare
cp a.txt c.txt; cmp a.txt c.txt && echo same; cmp a.txt b.txt; echo $?
=== copy a tree
cp -r src copy && find copy -type f | sort
=== move many
mkdir t && mv a.txt b.txt t/ && ls t
=== remove
rm a.txt; ls a.txt 2>/dev/null; echo $?
=== remove a missing file
rm -f nope; echo $?; rm nope 2>/dev/null; echo $?
=== remove a folder
rmdir src 2>/dev/null; echo $?; rm -rf src; test -d src || echo gone
=== rename by loop
for f in *.txt; do mv "$f" "${f%.txt}.md"; done; ls *.md
=== basename dirname
basename /a/b/c.txt .txt; dirname /a/b/c.txt
=== tests of files
[ -f a.txt ] && [ -d src ] && [ ! -e nope ] && [ -s a.txt ] && echo all
=== newer file
touch n1; sleep 0.02; touch n2; [ n2 -nt n1 ] && echo newer
=== append and truncate
echo one > f; echo two >> f; cat f; : > f; wc -c < f
=== here document
cat > h.txt <<EOF
Home is $((1+1)) here
  kept
EOF
cat h.txt
=== quoted here document
cat <<'EOF'
no $expansion `here`
EOF
=== here document with tabs
cat <<-EOF
	tab
	gone
	EOF
=== here string
wc -w <<< "one two three"
=== stderr to a file
ls nope 2> err.txt; echo $?; wc -l < err.txt
=== both to a file
{ echo out; echo err >&2; } > all.txt 2>&1; cat all.txt
=== both short
{ echo out; echo err >&2; } &> all.txt; wc -l < all.txt
=== swap
{ echo out; echo err >&2; } 2>&1 >/dev/null | tr a-z A-Z
=== read lines
n=0; while read -r line; do n=$((n+1)); done < a.txt; echo $n
=== read without a last newline
printf 'a\nb' | while read -r l || [ -n "$l" ]; do echo "[$l]"; done
=== read fields
IFS=: read -r a b c <<< "x:y:z:w"; echo "$a|$b|$c"
=== mapfile
mapfile -t lines < a.txt; echo "${#lines[@]} ${lines[1]}"
=== file descriptors
exec 3> out3; echo to three >&3; exec 3>&-; cat out3
=== reading from a descriptor
exec 4< a.txt; read -r x <&4; read -r y <&4; exec 4<&-; echo $x $y
=== stat
stat -c '%s %n' a.txt; stat -c %F src
=== permissions
chmod 640 a.txt; stat -c %a a.txt; chmod +x a.txt; [ -x a.txt ] && echo x
=== a script
printf '#!/bin/bash\necho "hello $1 of $#"\nexit 4\n' > s.sh; chmod +x s.sh; ./s.sh you; echo $?; bash s.sh a b
=== source
printf 'greet() { echo hi $1; }\nV=5\n' > lib.sh; . ./lib.sh; greet you; echo $V
=== temporary file
t=$(mktemp); echo x > "$t"; cat "$t"; rm "$t"; [ -e "$t" ] || echo removed
=== directory stack
mkdir d; pushd d > /dev/null; basename "$PWD"; popd > /dev/null; [ -d d ] && echo back
=== subshell folder
(cd src && ls); ls -d src
=== globs
ls *.csv; echo src/*/*.py; echo [ab].txt; echo ?.txt
=== globstar
shopt -s globstar; printf '%s\n' **/*.py
=== nullglob
shopt -s nullglob; echo *.nope none
=== extglob
shopt -s extglob; ls !(*.txt|*.csv|src|logs)
=== braces
mkdir -p p/{a,b}/{1,2}; find p -type d | sort; echo f{1..3}.txt {c..a} {01..03}
=== concatenation
cat a.txt b.txt | sort | uniq -d
=== archive
tar czf s.tgz src && tar tzf s.tgz | sort && mkdir o && tar xzf s.tgz -C o && find o -type f | sort
=== archive of some
tar cf t.tar a.txt b.txt; tar tf t.tar; tar xf t.tar a.txt -O
=== gzip
gzip -k a.txt && ls a.txt.gz && zcat a.txt.gz && gunzip -c a.txt.gz | wc -l
=== gzip pipe
gzip < words.txt | gunzip | md5sum
=== zip
zip -q z.zip a.txt b.txt; mkdir u; unzip -q z.zip -d u; ls u
=== checksums
md5sum a.txt; sha256sum a.txt | cut -c1-16; sha1sum < b.txt
=== check checksums
sha256sum a.txt b.txt > sums; sha256sum -c sums
=== base64
base64 a.txt; base64 a.txt | base64 -d | head -1
=== hex
printf 'AB\n' | xxd -p; printf 'AB' | od -An -tx1
=== truncate and dd
dd if=/dev/zero of=z bs=1024 count=2 2>/dev/null; wc -c < z; truncate -s 10 z; wc -c < z
=== du and counting
find . -type f | wc -l; ls | wc -l
=== realpath
cd src/lib && realpath --relative-to=.. . ; cd - > /dev/null; basename "$(realpath .)" | wc -l
=== patch
diff -u a.txt b.txt > p.diff; patch -s a.txt p.diff; cat a.txt
=== noclobber
set -C; echo x > a.txt; echo $?
=== which commands
command -v grep > /dev/null && echo yes; command -v no-such-thing; echo $?
=== not found
no-such-command 2>/dev/null; echo $?
=== heredoc to a loop
while read -r k v; do echo "$v=$k"; done <<EOF
a 1
b 2
EOF
=== ini values
sed -n '/^\[web\]/,/^\[/p' config.ini | grep -E '^port' | cut -d= -f2 | tr -d ' '
=== zip list
zip -qr z.zip src a.txt; unzip -Z1 z.zip | sort; unzip -qq -o z.zip a.txt -d u && cat u/a.txt; unzip -p z.zip a.txt
=== zip exclude
zip -qr z.zip src -x '*.py'; unzip -Z1 z.zip | sort
=== unzip what is no zip
echo text > z.zip; unzip -q z.zip; echo $?
=== tar xz
tar cJf s.txz src && tar tf s.txz | sort && mkdir o && tar xf s.txz -C o --strip-components=1 && find o -type f | sort
=== tar exclude
tar cf t.tar --exclude='*.py' src a.txt; tar tf t.tar | sort
=== tar long name
d=$(printf '%0100d' 0); mkdir -p $d/$d && echo x > $d/$d/f && tar czf t.tgz $d && rm -r $d && tar xzf t.tgz && cat $d/$d/f
=== tar from a folder
tar cf t.tar -C src . ; tar tf t.tar | sort; tar xf t.tar nothing; echo $?
=== sums
sha256sum a.txt b.txt > s; sha256sum -c s; md5sum a.txt; sha1sum < a.txt; cksum a.txt; od -An -tx1 a.txt | head -2; xxd a.txt | head -2; base64 a.txt
=== ls long
cp words.txt tool.sh; chmod +x tool.sh; ls -l [bnw]*.txt tool.sh | awk '{print $1, $2, $5, NF, $9}'
=== ls by size and back
ls -lS *.txt *.csv | awk '{print $5, $9}'; ls -rS *.txt
=== ls by time
touch new.txt; ls -t | head -1; ls -tr | tail -1; ls -ltr *.txt | wc -l
=== ls human
head -c 1500 /dev/zero > k; head -c 123456 /dev/zero > k2; ls -lh k k2 a.txt | awk '{print $5, $9}'; ls -lh logs | head -1
=== ls files and folders
ls a.txt src logs nope; echo $?; ls -d src logs a.txt; ls src/ logs/
=== ls recursive
ls -R; ls -lR src | awk '{print $NF}'
=== ls hidden
touch .hidden src/.h; ls -a | head -3; ls -A src; ls -la src | awk 'NR > 1 {print $9}'; ls -aF src
=== ls marks and forms
ls -l1 a.txt | awk '{print NF}'; ls -F logs src; cp words.txt tool.sh; chmod +x tool.sh; ls -F t*; ls -p src; ls -m *.txt; ls --color=auto -1 logs; ls -Q a.txt; ls --group-directories-first
=== ls sorts
touch v1 v10 v2; ls -v v*; ls -X | tail -3; ls --sort=size *.txt | head -2; ls -1r logs
=== ls times
ls -l --time-style=+%Y a.txt | awk '{print NF, $7}'; ls -l --time-style=long-iso a.txt | awk '{print NF}'; ls --full-time a.txt | awk '{print NF}'
=== ls ignores
ls --ignore='*.txt' -I '*.csv'; ls -go a.txt | awk '{print NF}'; ls -nl a.txt | awk '{print NF}'; ls a.txt/; echo $?
=== ls of nothing
mkdir e; ls -l e; ls e; ls -lR e logs | awk '{print NF, $NF}'; ls ""; echo $?
=== rm of nothing and of dots
rm -rf "" ; echo $?; rm "" 2>/dev/null; echo $?; rm -rf "$NOPE"; ls | wc -l; rm -rf . ; echo $?; rm -rf ./ ; rm -rf .. ; echo $?; rm -r src/. ; echo $?; rm -rf src/..; ls
=== options of rm
touch x y; rm -v x y; rm x; echo $?; rm -f x; echo $?; rm src; echo $?; mkdir e; rm -d e; echo $?; rm -d src; echo $?; rm -rf src nope logs; echo $?; ls; touch -- -f; rm -- -f; ls | wc -l; rm; echo $?; rm -f; echo $?; rm a.txt/; echo $?; rm -f a.txt/ a.txt/x; echo $?; rm -z a.txt; echo $?; rm a.txt nope b.txt; echo $?; ls
=== rm says what it removes
rm -rv src/lib | sort
=== rm asks
touch x y z; printf 'y\nn\n' | rm -i x y; ls x y; yes | rm -i z; ls z; rm -if y; ls y
=== find below nothing
find "" -name '*.txt' -delete; echo $?; find "$X" -type f; find -L "$X" -name "*.txt" -delete; find -name 'a.txt'; find . \( -name 'a.txt' -o -name b.txt \) -print | sort; find src ! -name '*.py' -type d | sort; find -maxdepth 1 -name a.txt -newer nope 2>/dev/null; find . -name "" ; echo $?; X=; find $X -maxdepth 1 -name a.txt; ls | wc -l
=== tests of an empty name
for o in -d -e -s -r -w -x -f -L -h; do [ $o "" ] && echo $o; test $o "" && echo $o; done; echo end
=== a folder that is missing
mv a.txt archive/; echo $?; ls a.txt; cp a.txt archive/; echo $?; cp b.txt a.txt/; echo $?; cp a.txt nope/x; echo $?; mv a.txt b.txt nope; echo $?; cp a.txt b.txt nope; echo $?
=== options of mv
echo 1 > p; echo 2 > q; mv -n p q; cat p q; mv -b p q; cat q q~; mkdir d e; echo x > f1; mv -t d f1 a.txt; ls d; mv -T d e; ls e; mv -v e g; mv -T words.txt g; echo $?; mv g g; echo $?; mkdir g/h; mv g g/h; echo $?; mv -q a b; echo $?; mv words.txt; echo $?; mv; echo $?; mv nope x; echo $?; mv "" x; echo $?; mv words.txt ""; echo $?
=== mv of what is newer
echo old > o; sleep 0.02; echo new > n; mv -u o n; cat o n; mv -u n o; cat o; ls n
=== mv asks
echo 1 > p; echo 2 > q; echo n | mv -i p q; cat q; echo y | mv -i p q; cat q
=== mv of folders
mkdir t; mv src logs t/; ls t; mkdir -p x/src/k; mv t/src x; echo $?; mv t/logs x/; find x t | sort; mv x/ y; ls y; mkdir -p f/a; mv a.txt f/a/; mv f/a/a.txt f/; ls f
=== options of cp
echo 1 > p; echo 2 > q; cp -n p q; cat q; mkdir d; cp -t d p q; ls d; cp -T p q; cat q; cp -T p d; echo $?; cp --parents src/lib/util.py d; find d | sort; cp src x; echo $?; cp -q a b; echo $?; cp; echo $?; cp a.txt; echo $?; cp a.txt a.txt; echo $?; cp "" x; echo $?; cp nope x; echo $?; cp -v p r; cp -u p q; echo $?; cp -p p s; cp -af src z; find z | sort; cp --no-such a b; echo $?
=== cp of what is in a folder
cp -r src/. dst; find dst | sort; cp -r src/. dst; find dst | sort; cp -r src/ dst2; cp -r src/ dst2; find dst2 | sort; mkdir h; cp -r src/* h; find h | sort; cp -R src/lib/.. k; find k | sort; cp -rT src dst; ls dst; cp -r src a.txt; echo $?; mkdir -p m/src; touch m/src/main.py; cp -r src m; find m | sort
=== cp into itself
cp -r src src; echo $?; find src | sort
=== two files of one name
mkdir a1 b1 o; echo 1 > a1/f; echo 2 > b1/f; cp a1/f b1/f o; echo $?; cat o/f; mv a1/f b1/f o; echo $?; cat o/f; ls b1
=== cp of streams
echo hi | cp /dev/stdin x; cat x; cp <(echo ho) y; cat y; cp /dev/null z; wc -c < z; cp a.txt /dev/null; echo $?
=== cp says what it copies
cp -rv src c | sort; cp -v a.txt c; cp a.txt b.txt c/; ls c; cp -i a.txt c/b.txt <<< n; cp -i a.txt c/b.txt <<< y; cmp a.txt c/b.txt
=== everything that is tested
t() { "$@"; echo -n "$? "; }; t [ ]; t [ x ]; t [ "" ]; t [ ! x ]; t [ ! "" ]; t [ -n "" ]; t [ -z "" ]; t [ a = a ]; t [ a == b ]; t [ a != b ]; t [ a \< b ]; t [ b \> a ]; t [ 1 -lt 2 ]; t [ 2 -ge 2 ]; t [ " 3 " -eq 3 ]; t [ -5 -lt +3 ]; t [ 1 -eq a ]; t [ "" -eq 0 ]; t [ -f a.txt -a -d src ]; t [ -f nope -o -d src ]; t [ ! -f nope -a ! -d nope ]; t [ \( -f nope -o -d src \) -a a = a ]; t [ ! a = b ]; t [ ! ! x ]; t [ -f ]; t [ = ]; t [ ! ]; t [ "(" ]; t [ "(" = "(" ]; t [ "!" = "!" ]; t [ -a ]; t [ a -a b ]; t [ a -o "" ]; t [ -e a.txt ]; t [ -x a.txt ]; t [ -x src ]; t [ -s a.txt ]; t [ a.txt -ef ./a.txt ]; t [ a.txt -nt nope ]; t [ nope -ot a.txt ]; t [ nope -nt a.txt ]; t [ a.txt -ot nope ]; t [ a b ]; t [ a b c ]; t [ a b c d ]; t [ -t 1 ]; t [ -c /dev/null ]; t [ -f /dev/null ]; t [ -e /dev/stdin ]; t [ -d a.txt/ ]; t [ -e a.txt/ ]; t [ -d src/ ]; t [ a.txt; t [ -p a.txt ]; t [ -L a.txt ]; t [ "(" x ")" ]; t [ "(" ! x ")" ]; t [ "(" a = a ")" ]; t [ a = a -a b = b -o c = d ]; t [ x -a ]; t [ -n x -a -z ]; t [ ! -n ]; t test x = x; t test ; t [ 9223372036854775808 -gt 1 ]; t [ -d "$HOME" ]; t [ -w a.txt ]; t [ -r a.txt ]; export EX=1; t [ -v EX ]; t [ a = ]; t [ = a ]; t [ -z = ]; t [ -n = a ]; t [ ! "" = a ];  t [ -e -a -f ]
=== modes are kept
chmod +x a.txt; cp a.txt x; [ -x x ] && echo x; mv x y; [ -x y ] && echo y; cp -r src s; cp ./a.txt ././k; ls k; cp src/main.py .; ls main.py; cp src/lib/util.py ../ 2>/dev/null; cp -- a.txt -x; ls -- -x; mv -- -x kk; ls kk
=== realpath of more
realpath --relative-to=src a.txt src/main.py; realpath --relative-to=. src/main.py; realpath --relative-to src/lib logs; realpath nope | xargs basename; echo $?; realpath -e nope 2>/dev/null; echo $?; realpath nope/x 2>/dev/null; echo $?; realpath -m nope/x | tail -c 8; realpath src/../a.txt | tail -c 6; realpath "" 2>/dev/null; echo $?; realpath a.txt b.txt | wc -l; realpath 2>/dev/null; echo $?
