; A continuation for each call.
(define (ctak x y z) (call-with-current-continuation (lambda (k) (ctak-aux k x y z))))
(define (ctak-aux k x y z)
  (if (not (< y x))
      (k z)
      (ctak-aux k
        (call-with-current-continuation (lambda (k) (ctak-aux k (- x 1) y z)))
        (call-with-current-continuation (lambda (k) (ctak-aux k (- y 1) z x)))
        (call-with-current-continuation (lambda (k) (ctak-aux k (- z 1) x y))))))
(display (let loop ((i 0) (r 0)) (if (= i 8) r (loop (+ i 1) (ctak 18 12 6))))) (newline)
