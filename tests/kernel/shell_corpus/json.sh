=== pick
jq '.total' data.json
=== raw names
jq -r '.users[].name' data.json
=== select
jq -c '.users[] | select(.active) | {id, name}' data.json
=== map and add
jq '[.users[].id] | add' data.json
=== length and keys
jq '.users | length' data.json; jq -c 'keys' data.json
=== csv
jq -r '.users[] | [.id, .name, (.tags | join("|"))] | @csv' data.json
=== tsv
jq -r '.users[] | [.id, .name] | @tsv' data.json
=== group
jq -s -c 'group_by(.level) | map({level: .[0].level, n: length, ms: (map(.ms) | add)})' events.jsonl
=== lines
jq -c 'select(.ms > 10)' events.jsonl
=== arguments
jq --arg n Ben -r '.users[] | select(.name == $n) | .id' data.json
=== numbers as arguments
jq -n --argjson x 5 '$x * 2'
=== build
jq -n -c --arg a 1 '{a: $a, b: [1,2]}'
=== update
jq -c '.meta.page = 2 | .meta | del(.next)' data.json
=== null and default
jq -r '.meta.next // "none"' data.json
=== sort and unique
jq -c '[.users[].tags[]] | unique' data.json
=== exit status
jq -e '.users[1].active' data.json; echo $?
=== to entries
jq -r '.meta | to_entries[] | "\(.key)=\(.value)"' data.json
=== string functions
jq -n -r '"a,b,c" | split(",") | map(ascii_upcase) | join("-")'
=== test with a pattern
jq -r '.users[].name | select(test("^[AB]"))' data.json
=== reduce
jq -n 'reduce range(5) as $i (0; . + $i)'
=== limit and first
jq -c '[limit(2; .users[].id)], first(.users[].name)' data.json
=== pretty
echo '{"b":1,"a":[1,{"c":null}]}' | jq .
=== sorted keys
echo '{"b":1,"a":2}' | jq -cS .
=== invalid input
echo '{bad' | jq . 2>/dev/null; echo $?
=== loop over lines
jq -c '.users[]' data.json | while read -r u; do echo "$u" | jq -r .name; done
=== csv to json
tail -n +2 people.csv | jq -R -c 'split(",") | {name: .[0], age: (.[1] | tonumber)}' | head -2
=== files into one
jq -s 'length' data.json events.jsonl
