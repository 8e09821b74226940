(define (show . items) (for-each (lambda (x) (write x) (display " ")) items) (newline))
(define (spawn thunk) (thread-start! (make-thread thunk)))
; results and errors
(show (thread-join! (spawn (lambda () (apply + (iota 100))))))
(show (guard (e ((uncaught-exception? e) (list 'uncaught (uncaught-exception-reason e)))) (thread-join! (spawn (lambda () (raise 'boom))))))
(show (guard (e (#t (condition->string e))) (thread-join! (spawn (lambda () (car 5))))))
(show (thread-join! (spawn (lambda () (thread-sleep! 30))) 0.01 'late))
(show (guard (e ((join-timeout-exception? e) 'timeout)) (thread-join! (spawn (lambda () (thread-sleep! 30))) 0)))
(show (guard (e (#t (condition->string e))) (let ((t (spawn (lambda () 1)))) (thread-start! t))))
; a channel with several producers, and cyclic messages
(define channel (make-channel))
(define producers
  (map (lambda (n) (spawn (lambda ()
    (do ((i 0 (+ i 1))) ((= i 200))
      (let ((node (list i n))) (set-cdr! (cdr node) node) (channel-send! channel node)))))) '(1 2 3)))
(define sums (let loop ((left 600) (sum 0)) (if (= left 0) sum (loop (- left 1) (+ sum (car (channel-receive! channel)))))))
(for-each thread-join! producers)
(show sums (channel-receive! channel 0 'empty))
; a counter behind a mutex
(define counter 0)
(define m (make-mutex))
(define workers (map (lambda (i) (spawn (lambda () (do ((j 0 (+ j 1))) ((= j 300)) (with-mutex m (lambda () (set! counter (+ counter 1)))))))) '(1 2 3 4)))
(for-each thread-join! workers)
(show counter (mutex-lock! m) (mutex-lock! m 0.01) (mutex-unlock! m) (guard (e (#t (condition->string e))) (mutex-unlock! m)))
; a bounded buffer with condition variables
(define buffer '())
(define not-empty (make-condition-variable))
(define consumer (spawn (lambda ()
  (let loop ((got 0) (sum 0))
    (if (= got 100) sum
      (begin
        (mutex-lock! m)
        (if (null? buffer)
            (begin (mutex-unlock! m not-empty) (loop got sum))
            (let ((x (car buffer))) (set! buffer (cdr buffer)) (mutex-unlock! m) (loop (+ got 1) (+ sum x))))))))))
(do ((i 0 (+ i 1))) ((= i 100)) (mutex-lock! m) (set! buffer (cons i buffer)) (mutex-unlock! m) (condition-variable-signal! not-empty))
(show (thread-join! consumer))
; a continuation of one thread runs in another
(define k #f)
(define (there) (* 10 (call/cc (lambda (c) (set! k c) 1))))
(show (there))
(show (thread-join! (spawn (lambda () (there)))))
(define p (make-parameter 'outside))
(show (parameterize ((p 'inside)) (thread-join! (spawn (lambda () (p))))))
