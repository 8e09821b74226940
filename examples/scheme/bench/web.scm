; A service with cyclic data: threads take requests, each of which makes a session that refers to
; its user, its requests and back. A table keeps the last sessions of each thread; the others are
; garbage in cycles. Prints the time of a request at several percentiles.
(define threads 2)
(define requests 20000)
(define kept 500)

(define-record-type session (make-session user requests next) session?
  (user session-user) (requests session-requests set-session-requests!)
  (next session-next set-session-next!))
(define-record-type request (make-request session path fields) request?
  (session request-session) (path request-path) (fields request-fields))

(define (handle number)
  (let* ((session (make-session (string-append "user-" (number->string (modulo number 100))) '() #f))
         (fields (make-hash-table)))
    (set-session-next! session session)
    (do ((i 0 (+ i 1))) ((= i 5))
      (let ((request (make-request session (string-append "/page/" (number->string i)) fields)))
        (hash-table-set! fields i request)
        (set-session-requests! session (cons request (session-requests session)))))
    session))

(define (serve id)
  (let ((sessions (make-vector kept #f)) (times (make-vector requests 0)))
    (do ((i 0 (+ i 1))) ((= i requests) times)
      (let ((start (current-jiffy)))
        (vector-set! sessions (modulo i kept) (handle i))
        (vector-set! times i (- (current-jiffy) start))))))

(define workers (map (lambda (id) (thread-start! (make-thread (lambda () (serve id))))) (iota threads)))
(define times (sort (apply vector-append (map thread-join! workers)) <))
(define (percentile p)
  (/ (vector-ref times (exact (floor (* p (- (vector-length times) 1))))) 1000.0))
(for-each (lambda (name p) (display name) (display " ") (display (percentile p)) (display " us") (newline))
          '("p50" "p90" "p99" "p99.9" "max") '(0.5 0.9 0.99 0.999 1))
(for-each (lambda (key) (display key) (display " ") (display (cdr (assq key (heap-stats)))) (newline))
          '(collections young-collections collected full-pause-max-ms))
