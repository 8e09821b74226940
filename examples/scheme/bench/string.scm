; Strings that grow and are cut.
(define (grow s n)
  (if (> (string-length s) n)
      s
      (grow (let ((l (string-length s))) (string-append (substring s (quotient l 2) l) "[" s "]" (substring s 0 (quotient l 3)))) n)))
(define (count s c) (let loop ((i 0) (n 0)) (if (= i (string-length s)) n (loop (+ i 1) (if (char=? c (string-ref s i)) (+ n 1) n)))))
(display (let loop ((i 0) (r 0)) (if (= i 20) r (loop (+ i 1) (count (grow "abc" 200000) #\b))))) (newline)
