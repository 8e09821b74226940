; Many small objects that live for a short and a long time.
(define (make depth) (if (= depth 0) '() (cons (make (- depth 1)) (make (- depth 1)))))
(define (check tree) (if (null? tree) 1 (+ 1 (check (car tree)) (check (cdr tree)))))
(define long (make 16))
(display (let loop ((i 0) (sum 0)) (if (= i 64) sum (loop (+ i 1) (+ sum (check (make 13))))))) (newline)
(display (check long)) (newline)
