; Floats, vectors and closures.
(define (dot a b) (let ((n (vector-length a))) (do ((i 0 (+ i 1)) (s 0.0 (+ s (* (vector-ref a i) (vector-ref b i))))) ((= i n) s))))
(define (scale! v by) (do ((i 0 (+ i 1))) ((= i (vector-length v)) v) (vector-set! v i (by (vector-ref v i)))))
(define v (list->vector (map (lambda (i) (/ 1.0 (+ i 1))) (iota 1000))))
(display (let loop ((i 0) (s 0.0)) (if (= i 1500) s (loop (+ i 1) (+ s (dot v (scale! v (lambda (x) (+ x 0.001))))))))) (newline)
