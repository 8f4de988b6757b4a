=== arithmetic
echo $((7 / 2)) $((7 % 3)) $((2 ** 10)) $(( (1 + 2) * 3 )) $((0x1f)) $((5 > 3))
=== increments
i=1; ((i++)); ((i += 5)); let i*=2; echo $i
=== bc
echo 'scale=2; 10 / 3' | bc; echo '2^20' | bc
=== for over words
for w in a "b c" d; do echo "$w"; done
=== for with numbers
for ((i = 0; i < 3; i++)); do printf '%d ' $i; done; echo
=== seq
seq 1 2 7 | tr '\n' ' '; echo; seq -w 8 10; seq -s, 3
=== while and break
i=0; while true; do i=$((i + 1)); [ $i -eq 3 ] && continue; [ $i -gt 5 ] && break; echo $i; done
=== until
n=3; until [ $n -eq 0 ]; do echo $n; ((n--)); done
=== case
for x in apple 42 -v; do case $x in [0-9]*) echo number;; -*) echo option;; a*|b*) echo word;; *) echo other;; esac; done
=== if and elif
x=5; if [ $x -gt 10 ]; then echo big; elif [ $x -gt 3 ]; then echo middle; else echo small; fi
=== double brackets
s=hello; [[ $s == h*o && ${#s} -gt 3 ]] && echo yes; [[ $s =~ ^h(.)l ]] && echo ${BASH_REMATCH[1]}
=== and or
true && echo a || echo b; false && echo a || echo b; ! true; echo $?
=== functions
add() { local a=$1 b=$2; echo $((a + b)); }; r=$(add 2 3); echo "$r"; ret() { return 7; }; ret; echo $?
=== recursion
fact() { if (($1 <= 1)); then echo 1; else echo $(($1 * $(fact $(($1 - 1))))); fi; }; fact 6
=== deep recursion
down() { if (($1 > 0)); then down $(($1 - 1)); else echo bottom; fi; }; down 50
=== arguments
f() { echo "$# $1 ${*: -1}"; shift; echo "$@"; for a; do echo "[$a]"; done; }; f a 'b c' d
=== set positional
set -- x y z; echo $2 $#; shift 2; echo $1
=== getopts
f() { local OPTIND o; while getopts 'ab:' o; do case $o in a) echo A;; b) echo "B=$OPTARG";; esac; done; shift $((OPTIND - 1)); echo "rest $*"; }; f -a -b 5 tail
=== arrays
a=(one two three); a+=(four); echo ${a[0]} ${#a[@]} ${a[@]:1:2} ${!a[@]}; unset 'a[1]'; echo "${a[@]}"
=== associative arrays
declare -A m=([x]=1 [y]=2); m[z]=3; for k in $(printf '%s\n' "${!m[@]}" | sort); do echo $k=${m[$k]}; done; [[ -v m[x] ]] && echo has
=== array from a command
files=(*.csv); echo ${#files[@]} "${files[0]}"; IFS=, read -ra p <<< "a,b,c"; echo ${p[2]}
=== join an array
a=(1 2 3); (IFS=,; echo "${a[*]}")
=== defaults
unset u; echo ${u:-default} ${u:=set} $u ${u:+alt}
=== required
(unset q; : ${q:?missing}) 2>/dev/null; echo $?
=== trimming
p=/a/b/file.tar.gz; echo ${p##*/} ${p%/*} ${p%%.*} ${p#*.}
=== replacing
s='a-b-c'; echo ${s/-/_} ${s//-/_} ${s/#a/X} ${s/%c/Y} ${s//-}
=== substrings
s=abcdef; echo ${s:2} ${s:1:3} ${s: -2} ${#s}
=== case of letters
s=hello; echo ${s^} ${s^^}; t=LOUD; echo ${t,,} ${t,}
=== indirect
name=value; ref=name; echo ${!ref}
=== quoting
x='a  b'; echo $x; echo "$x"; echo '$x' "\$x" $'tab\there'
=== command substitution
echo "files: $(ls *.txt | wc -l | tr -d ' ')" `echo old`
=== process substitution
diff <(sort numbers.txt) <(sort -n numbers.txt) > /dev/null; echo $?; cat <(echo one) <(echo two)
=== pipefail
set -o pipefail; false | true; echo $?; set +o pipefail; false | true; echo $?
=== pipestatus
false | true | (exit 3); echo "${PIPESTATUS[@]}"
=== set -e
set -e; echo before; false; echo never
=== set -e in conditions
set -e; if false; then :; fi; false || echo caught; ! true; echo end
=== set -u
set -u; echo ${x-unset}; echo $nothing; echo never
=== trap on exit
trap 'echo bye' EXIT; echo work; exit 3
=== trap on error
trap 'echo "error $?"' ERR; false; echo on
=== cleanup by trap
t=$(mktemp); trap 'rm -f "$t"; echo cleaned' EXIT; echo x > $t; cat $t
=== exit status
(exit 42); echo $?; bash -c 'exit 9'; echo $?
=== eval
c='echo "$((3*3))"'; eval "$c"
=== printf
printf '%05d|%-5s|%5.2f|%x|%s\n' 42 ab 3.14159 255 end; printf '%s,' a b c; echo; printf '%q\n' "a b"
=== printf to a variable
printf -v v '%03d' 7; echo $v
=== echo options
echo -n no; echo -e 'a\tb\nc'
=== dates
date -u -d '2024-02-28 +2 days' +%F; date -u -d @0 +%Y-%m-%dT%H:%M:%SZ; date -d 2024-12-25 +%A
=== seconds between
a=$(date -d 2024-01-01 +%s); b=$(date -d 2024-03-01 +%s); echo $(((b - a) / 86400))
=== select from a here document
PS3=''; select x in red green; do echo "got $x"; break; done <<< 2 2>/dev/null
=== export to a child
export V=1; W=2; bash -c 'echo "$V-$W"'; X=3 bash -c 'echo $X'
=== env
env -i A=1 bash -c 'echo $A'; A=5 env | grep ^A=
=== readonly
readonly R=1; (R=2) 2>/dev/null; echo $? $R
=== local scope
x=1; f() { local x=2; g; }; g() { echo $x; }; f; echo $x
=== namerefs
f() { local -n out=$1; out=changed; }; v=old; f v; echo $v
=== groups and subshells
x=1; (x=2; echo $x); { x=3; echo $x; }; echo $x
=== background and wait
(sleep 0.05; echo late) & echo first; wait; echo done
=== wait for a status
(exit 5) & wait $!; echo $?
=== timeout
timeout 0.2 sleep 5; echo $?
=== time limits in a loop
end=$((SECONDS + 1)); [ $SECONDS -le $end ] && echo in time
=== loops into a pipe
for i in 3 1 2; do echo $i; done | sort | tr -d '\n'; echo
=== nested loops
for i in 1 2; do for j in a b; do [ $j = b ] && continue 2; echo $i$j; done; done
=== random is a number
[[ $RANDOM =~ ^[0-9]+$ ]] && echo number
=== ifs
IFS=:; set -- $(echo a:b:c); echo $2; unset IFS
=== aliases
shopt -s expand_aliases
alias hi='echo hello'
hi there
=== shell options
set -f; echo *.txt; set +f; echo a*.txt
=== xtrace goes to stderr
set -x; echo hi; set +x
=== a menu of functions
do_start() { echo starting; }; do_stop() { echo stopping; }; for c in start stop; do "do_$c"; done
=== progress dots
for i in 1 2 3; do printf .; done; echo ' done'
=== retry
n=0; until [ $n -ge 3 ]; do n=$((n + 1)); false && break; done; echo tried $n
=== assert
assert() { [ "$1" = "$2" ] && echo ok || echo "fail: $1"; }; assert 1 1; assert 1 2
=== uuid-like names
printf '%s\n' {a,b}{1,2} | paste -sd' '
=== tests of strings
[ -z "" ] && [ -n x ] && [ a != b ] && [[ a < b ]] && echo fine
=== numbers compared
[ 5 -eq 5 ] && [ 3 -lt 4 ] && (( 3 <= 3 )) && test 1 -ne 2 && echo fine
=== syntax error
bash -c 'if' 2>/dev/null; echo $?
=== yes with head
yes ok | head -n 3
=== numfmt
numfmt --to=iec 1048576; echo 1K | numfmt --from=iec
=== expr
expr 3 + 4; expr length hello; expr abc : 'a\(.\)c'
=== factor and sums
factor 60; seq 100 | paste -sd+ | bc
=== quotes in arithmetic
x=7; if (( $(echo "$x > 5" | bc -l) )); then echo big; else echo small; fi; ls 5 2>/dev/null
=== arithmetic in arithmetic
(( $(echo "$((1+1)) > 1" | bc) && 1 )) && echo y; ls 1 2>/dev/null
=== backquotes in arithmetic
(( `echo "7 > 5" | bc` )) && echo bt; ls 5
=== arithmetic in many places
cat > s.sh <<'EOF'
if (( $(echo "7 > 5" | bc) )); then echo y; fi
EOF
cat s.sh; echo '(( $(echo "7 > 5" | bc) ))' "(( \$(a \"b\") ))"; # (( $(echo "7 > 5") ))
if ((
  $(echo "7 > 5" | bc) )); then echo multi; fi
! (( $(echo "7 > 5" | bc) )) || echo not; (( $(echo "7 < 5" | bc) )) || echo no
f() { (( $(echo "$1 > 5" | bc -l) )); }; f 6 && echo f6; f 4 || echo f4
(( n = $(echo "3 > 2" | bc) + 4, m = 2 )); echo $n $m; (( $(printf '%s' "$(echo "2")") == 2 )) && echo nested; ((n++)); ((n == 6)) && echo "$n"; ((echo sub); (echo "$(echo "b")")); cat <<< "x" ; (( $(cat <<< "1") )) && echo hs; ls
