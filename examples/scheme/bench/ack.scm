; A deep recursion.
(define (ack m n)
  (cond ((= m 0) (+ n 1)) ((= n 0) (ack (- m 1) 1)) (else (ack (- m 1) (ack m (- n 1))))))
(display (let loop ((i 0) (r 0)) (if (= i 4) r (loop (+ i 1) (ack 3 8))))) (newline)
