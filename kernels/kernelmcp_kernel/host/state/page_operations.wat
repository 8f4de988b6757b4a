(module
  (import "g" "heap" (memory $h 1))
  (import "g" "own" (memory $o 1))
  ;; Of pages [first, end): two sums of NH (RFC 4418, 5.2), with the key at own[KEY ..] and with it from its 16th byte on. Where they are not those
  ;; kept at own[HASHES + page * 16], keep them, and write the page's number to own[list + 4 * n]; gives n
  (func (export "scan") (param $first i32) (param $end i32) (param $list i32) (result i32)
    (local $p i32) (local $a i32) (local $e i32) (local $key i32) (local $n i32)
    (local $x v128) (local $y v128) (local $k0 v128) (local $k1 v128) (local $k2 v128) (local $s v128) (local $t v128)
    (local.set $p (local.get $first))
    (block $done (loop $pages
      (br_if $done (i32.ge_u (local.get $p) (local.get $end)))
      (local.set $a (i32.shl (local.get $p) (i32.const 12)))
      (local.set $e (i32.add (local.get $a) (i32.const 4096)))
      (local.set $key (i32.const 0x110000))
      (local.set $k2 (v128.load $o (local.get $key)))
      (local.set $s (v128.const i64x2 0 0))
      (local.set $t (v128.const i64x2 0 0))
      (loop $words
        (local.set $x (v128.load $h (local.get $a)))
        (local.set $y (v128.load $h offset=16 (local.get $a)))
        (local.set $k0 (local.get $k2))
        (local.set $k1 (v128.load $o offset=16 (local.get $key)))
        (local.set $k2 (v128.load $o offset=32 (local.get $key)))
        (local.set $k0 (i32x4.add (local.get $x) (local.get $k0)))
        (local.set $x (i32x4.add (local.get $x) (local.get $k1)))
        (local.set $k1 (i32x4.add (local.get $y) (local.get $k1)))
        (local.set $y (i32x4.add (local.get $y) (local.get $k2)))
        (local.set $s (i64x2.add (local.get $s) (i64x2.add
          (i64x2.extmul_low_i32x4_u (local.get $k0) (local.get $k1)) (i64x2.extmul_high_i32x4_u (local.get $k0) (local.get $k1)))))
        (local.set $t (i64x2.add (local.get $t) (i64x2.add
          (i64x2.extmul_low_i32x4_u (local.get $x) (local.get $y)) (i64x2.extmul_high_i32x4_u (local.get $x) (local.get $y)))))
        (local.set $key (i32.add (local.get $key) (i32.const 32)))
        (local.set $a (i32.add (local.get $a) (i32.const 32)))
        (br_if $words (i32.lt_u (local.get $a) (local.get $e))))
      ;; each sum is of both of its lanes
      (local.set $s (i64x2.add
        (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $s) (local.get $t))
        (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $s) (local.get $t))))
      (if (v128.any_true (v128.xor (local.get $s) (v128.load $o offset=0x120000 (i32.shl (local.get $p) (i32.const 4)))))
        (then
          (v128.store $o offset=0x120000 (i32.shl (local.get $p) (i32.const 4)) (local.get $s))
          (i32.store $o (i32.add (local.get $list) (i32.shl (local.get $n) (i32.const 2))) (local.get $p))
          (local.set $n (i32.add (local.get $n) (i32.const 1)))))
      (local.set $p (i32.add (local.get $p) (i32.const 1)))
      (br $pages)))
    (local.get $n))
  ;; What differs in a page of the heap from own[image ..]: 256 bits, which of its pieces of 16 bytes, then those, xored. Written to own[to ..]; gives its end
  (func (export "pack") (param $page i32) (param $image i32) (param $to i32) (result i32)
    (local $end i32) (local $i i32) (local $bits i64) (local $x v128)
    (local.set $end (i32.add (local.get $to) (i32.const 32)))
    (loop $pieces
      (local.set $x (v128.xor (v128.load $h (local.get $page)) (v128.load $o (local.get $image))))
      (if (v128.any_true (local.get $x))
        (then
          (local.set $bits (i64.or (local.get $bits) (i64.shl (i64.const 1) (i64.extend_i32_u (local.get $i)))))
          (v128.store $o (local.get $end) (local.get $x))
          (local.set $end (i32.add (local.get $end) (i32.const 16)))))
      (local.set $page (i32.add (local.get $page) (i32.const 16)))
      (local.set $image (i32.add (local.get $image) (i32.const 16)))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (if (i32.eqz (i32.and (local.get $i) (i32.const 63)))
        (then
          (i64.store $o (local.get $to) (local.get $bits))
          (local.set $bits (i64.const 0))
          (local.set $to (i32.add (local.get $to) (i32.const 8)))))
      (br_if $pieces (i32.lt_u (local.get $i) (i32.const 256))))
    (local.get $end))
  ;; how many bytes such a page has at own[from ..]
  (func (export "packed_bytes") (param $from i32) (result i32)
    (i32.add (i32.const 32) (i32.shl (i32.wrap_i64 (i64.add
      (i64.add (i64.popcnt (i64.load $o (local.get $from))) (i64.popcnt (i64.load $o offset=8 (local.get $from))))
      (i64.add (i64.popcnt (i64.load $o offset=16 (local.get $from))) (i64.popcnt (i64.load $o offset=24 (local.get $from))))))
      (i32.const 4))))
  ;; xor a page of the heap with it
  (func (export "unpack") (param $page i32) (param $from i32)
    (local $at i32) (local $piece i32) (local $i i32) (local $bits i64)
    (local.set $at (i32.add (local.get $from) (i32.const 32)))
    (loop $words
      (local.set $bits (i64.load $o (i32.add (local.get $from) (i32.shl (local.get $i) (i32.const 3)))))
      (block $none (loop $pieces
        (br_if $none (i64.eqz (local.get $bits)))
        (local.set $piece (i32.add (local.get $page) (i32.shl (i32.wrap_i64 (i64.ctz (local.get $bits))) (i32.const 4))))
        (v128.store $h (local.get $piece) (v128.xor (v128.load $h (local.get $piece)) (v128.load $o (local.get $at))))
        (local.set $at (i32.add (local.get $at) (i32.const 16)))
        (local.set $bits (i64.and (local.get $bits) (i64.sub (local.get $bits) (i64.const 1))))
        (br $pieces)))
      (local.set $page (i32.add (local.get $page) (i32.const 1024)))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $words (i32.lt_u (local.get $i) (i32.const 4))))))
