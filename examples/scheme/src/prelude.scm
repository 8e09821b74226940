;; The part of the language that is written in it: macros, and all procedures that call others.

(define (call-with-values producer consumer) (%apply-values consumer (producer)))
(define (call-with-current-continuation f) (%call/cc f))
(define call/cc call-with-current-continuation)

;; ---- dynamic extent

(define (dynamic-wind before thunk after)
  (before)
  (%set-winders! (cons (cons before after) (%winders)))
  (let ((result (thunk)))
    (%set-winders! (cdr (%winders)))
    (after)
    result))

(define (%rewind k vals)
  (define target (%continuation-winders k))
  (define (common a b)
    (let ((la (length a)) (lb (length b)))
      (let loop ((a (if (> la lb) (list-tail a (- la lb)) a))
                 (b (if (> lb la) (list-tail b (- lb la)) b)))
        (if (eq? a b) a (loop (cdr a) (cdr b))))))
  (define shared (common (%winders) target))
  (define (leave)
    (if (not (eq? (%winders) shared))
        (let ((winder (car (%winders))))
          (%set-winders! (cdr (%winders)))
          ((cdr winder))
          (leave))))
  (define (enter list)
    (if (not (eq? list shared))
        (begin
          (enter (cdr list))
          ((caar list))
          (%set-winders! list))))
  (leave)
  (enter target)
  (%throw k vals))

;; ---- errors

(define (with-exception-handler handler thunk)
  (let ((outer (%handlers)))
    (%set-handlers! (cons handler outer))
    (let ((result (thunk)))
      (%set-handlers! outer)
      result)))

(define (%handle object)
  (let ((handlers (%handlers)))
    (if (null? handlers)
        (%uncaught object)
        (begin
          (%set-handlers! (cdr handlers))
          (let ((result ((car handlers) object)))
            (%set-handlers! handlers)
            result)))))

(define (raise-continuable object) (%handle object))

(define (raise object)
  (%handle object)
  ;; The handler has returned, which is an error in the outer handlers.
  (if (pair? (%handlers)) (%set-handlers! (cdr (%handlers))))
  (raise (%condition "a handler returned from the error:" (list object))))

(define (error message . irritants) (raise (%condition message irritants)))
(define (exit . code)
  (let loop ()
    (if (pair? (%winders))
        (let ((winder (car (%winders))))
          (%set-winders! (cdr (%winders)))
          ((cdr winder))
          (loop))))
  (apply %exit code))
(define emergency-exit %exit)

(define (%guard body handler)
  ((%call/cc
    (lambda (k)
      (with-exception-handler
       (lambda (object)
         ((%call/cc
           (lambda (inner)
             (k (lambda ()
                  (handler object
                           (lambda ()
                             (inner (lambda () (raise-continuable object)))))))))))
       (lambda ()
         (let ((result (body)))
           (lambda () result))))))))

(define-syntax guard
  (syntax-rules ()
    ((_ (name clause ...) body ...)
     (%guard (lambda () body ...)
             (lambda (name again) (%guard-clauses again clause ...))))))

(define-syntax %guard-clauses
  (syntax-rules (else =>)
    ((_ again) (again))
    ((_ again (else body ...)) (begin body ...))
    ((_ again (test => receiver) clause ...)
     (let ((value test)) (if value (receiver value) (%guard-clauses again clause ...))))
    ((_ again (test) clause ...) (or test (%guard-clauses again clause ...)))
    ((_ again (test body ...) clause ...)
     (if test (begin body ...) (%guard-clauses again clause ...)))))

(define-syntax assert
  (syntax-rules ()
    ((_ test) (if test #t (error "assertion failed:" 'test)))))

;; ---- values

(define-syntax let-values
  (syntax-rules ()
    ((_ () body ...) (let () body ...))
    ((_ (((name ...) value) rest ...) body ...)
     (call-with-values (lambda () value) (lambda (name ...) (let-values (rest ...) body ...))))
    ((_ ((names value) rest ...) body ...)
     (call-with-values (lambda () value) (lambda names (let-values (rest ...) body ...))))))

(define-syntax let*-values
  (syntax-rules ()
    ((_ bindings body ...) (let-values bindings body ...))))

(define-syntax receive
  (syntax-rules ()
    ((_ names value body ...) (call-with-values (lambda () value) (lambda names body ...)))))

(define-syntax define-values
  (syntax-rules ()
    ((_ () value) (call-with-values (lambda () value) (lambda () #f)))
    ((_ (name ...) value)
     (%define-values (name ...) () value))
    ((_ (name . rest) value)
     (begin
       (define all (call-with-values (lambda () value) list))
       (define name (car all))
       (define rest (cdr all))))
    ((_ name value) (define name (call-with-values (lambda () value) list)))))

(define-syntax %define-values
  (syntax-rules ()
    ((_ () ((name part) ...) value)
     (begin
       (define all #f)
       (define name (begin (if (not all) (set! all (call-with-values (lambda () value) list)))
                           (let ((first (car all))) (set! all (cdr all)) first)))
       ...))
    ((_ (name rest ...) (done ...) value)
     (%define-values (rest ...) (done ... (name name)) value))))

;; ---- parameters

(define (make-parameter value . converter)
  (if (null? converter)
      (%make-parameter value #f)
      (%make-parameter ((car converter) value) (car converter))))

(define (%bind parameters values thunk)
  (let loop ((ps parameters) (vs values) (list (%parameters)))
    (if (null? ps)
        (let ((outer (%parameters)))
          (%set-parameters! list)
          (let ((result (thunk)))
            (%set-parameters! outer)
            result))
        (let ((converter (%parameter-converter (car ps))))
          (loop (cdr ps)
                (cdr vs)
                (%bind-parameter (car ps)
                                 (if converter (converter (car vs)) (car vs))
                                 list))))))

(define-syntax parameterize
  (syntax-rules ()
    ((_ ((parameter value) ...) body ...)
     (%bind (list parameter ...) (list value ...) (lambda () body ...)))))

;; ---- promises

(define (force promise)
  (if (not (promise? promise))
      promise
      (let loop ()
        (if (%promise-forced? promise)
            (%promise-content promise)
            (let* ((content (%promise-content promise))
                   (value ((car content))))
              ;; The body may have forced the promise itself.
              (cond ((%promise-forced? promise) (%promise-content promise))
                    ((cdr content) (%promise-set! promise #t value) value)
                    ((not (promise? value)) (%promise-set! promise #t value) value)
                    (else
                     (%promise-set! promise (%promise-forced? value) (%promise-content value))
                     (loop))))))))

;; ---- records

(define (%record-getter type at) (lambda (record) (%record-ref type at record)))
(define (%record-setter type at) (lambda (record value) (%record-set! type at record value)))
(define (%record-predicate type) (lambda (value) (%record? type value)))
(define (%record-constructor type names)
  (let ((places (%record-places type names)) (count (length names)))
    (if (equal? places (%iota count))
        (lambda values
          (if (= (length values) count)
              (%make-record type values)
              (error "wrong number of fields:" values)))
        (error "the constructor must take all fields in their order:" names))))
(define (%iota count)
  (let loop ((i (- count 1)) (list '()))
    (if (< i 0) list (loop (- i 1) (cons i list)))))

;; ---- lists

(define (caddr x) (car (cddr x)))
(define (cdddr x) (cdr (cddr x)))
(define (cadddr x) (car (cdddr x)))
(define (cddddr x) (cdr (cdddr x)))
(define (cdar x) (cdr (car x)))
(define (caadr x) (car (cadr x)))
(define (cdadr x) (cdr (cadr x)))
(define (cadar x) (car (cdar x)))
(define (cddar x) (cdr (cdar x)))
(define (caaar x) (car (caar x)))
(define (cdaar x) (cdr (caar x)))

(define (%any-null? lists)
  (and (pair? lists) (or (not (pair? (car lists))) (%any-null? (cdr lists)))))

(define (%map1 f list)
  (let loop ((rest list) (result '()))
    (if (pair? rest) (loop (cdr rest) (cons (f (car rest)) result)) (reverse result))))

(define map
  (case-lambda
    ((f list) (%map1 f list))
    ((f a b)
     (let loop ((a a) (b b) (result '()))
       (if (and (pair? a) (pair? b))
           (loop (cdr a) (cdr b) (cons (f (car a) (car b)) result))
           (reverse result))))
    ((f . lists)
     (let loop ((lists lists) (result '()))
       (if (%any-null? lists)
           (reverse result)
           (loop (%map1 cdr lists) (cons (apply f (%map1 car lists)) result)))))))

(define for-each
  (case-lambda
    ((f list)
     (let loop ((rest list))
       (if (pair? rest) (begin (f (car rest)) (loop (cdr rest))))))
    ((f . lists)
     (let loop ((lists lists))
       (if (not (%any-null? lists))
           (begin (apply f (%map1 car lists)) (loop (%map1 cdr lists))))))))

(define (append-map f . lists) (apply append (apply map f lists)))
(define (append! . lists) (apply append lists))
(define (reverse! list) (reverse list))
(define (append-reverse list tail)
  (if (pair? list) (append-reverse (cdr list) (cons (car list) tail)) tail))

(define (filter keep? list)
  (let loop ((rest list) (result '()))
    (cond ((null? rest) (reverse result))
          ((keep? (car rest)) (loop (cdr rest) (cons (car rest) result)))
          (else (loop (cdr rest) result)))))
(define (remove drop? list) (filter (lambda (x) (not (drop? x))) list))
(define (partition in? list) (values (filter in? list) (remove in? list)))
(define (delete x list) (remove (lambda (y) (equal? x y)) list))

(define (fold f state list)
  (if (null? list) state (fold f (f (car list) state) (cdr list))))
(define (fold-left f state list)
  (if (null? list) state (fold-left f (f state (car list)) (cdr list))))
(define (fold-right f state list)
  (let loop ((rest (reverse list)) (state state))
    (if (null? rest) state (loop (cdr rest) (f (car rest) state)))))
(define (reduce f default list)
  (if (null? list) default (fold f (car list) (cdr list))))

(define (find in? list)
  (cond ((null? list) #f) ((in? (car list)) (car list)) (else (find in? (cdr list)))))
(define (any in? list)
  (and (pair? list) (or (in? (car list)) (any in? (cdr list)))))
(define (every in? list)
  (or (null? list) (if (null? (cdr list)) (in? (car list)) (and (in? (car list)) (every in? (cdr list))))))
(define (count in? list) (length (filter in? list)))

(define (member x list . same?)
  (if (null? same?)
      (%member x list)
      (let loop ((rest list))
        (and (pair? rest) (if ((car same?) x (car rest)) rest (loop (cdr rest)))))))
(define (assoc x list . same?)
  (if (null? same?)
      (%assoc x list)
      (let loop ((rest list))
        (and (pair? rest) (if ((car same?) x (caar rest)) (car rest) (loop (cdr rest)))))))

(define (list-set! list at value) (set-car! (list-tail list at) value))
(define (last-pair list) (if (pair? (cdr list)) (last-pair (cdr list)) list))
(define (last list) (car (last-pair list)))
(define (first list) (car list))
(define (second list) (cadr list))
(define (third list) (caddr list))
(define (list-index in? list)
  (let loop ((rest list) (at 0))
    (cond ((null? rest) #f) ((in? (car rest)) at) (else (loop (cdr rest) (+ at 1))))))

(define iota
  (case-lambda
    ((n) (%iota n))
    ((n start) (map (lambda (i) (+ start i)) (%iota n)))
    ((n start step) (map (lambda (i) (+ start (* step i))) (%iota n)))))

(define (list-tabulate n f) (map f (%iota n)))
(define (delete-duplicates list)
  (let loop ((rest list) (result '()))
    (cond ((null? rest) (reverse result))
          ((member (car rest) result) (loop (cdr rest) result))
          (else (loop (cdr rest) (cons (car rest) result))))))

(define (%merge a b less?)
  (let loop ((a a) (b b) (result '()))
    (cond ((null? a) (append-reverse result b))
          ((null? b) (append-reverse result a))
          ((less? (car b) (car a)) (loop a (cdr b) (cons (car b) result)))
          (else (loop (cdr a) b (cons (car a) result))))))

(define (list-sort less? list)
  (let sort ((list list) (n (length list)))
    (if (< n 2)
        (if (= n 0) '() (cons (car list) '()))
        (let ((half (quotient n 2)))
          (%merge (sort list half) (sort (list-tail list half) (- n half)) less?)))))

(define (sort a b)
  (let ((sequence (if (procedure? a) b a)) (less? (if (procedure? a) a b)))
    (if (vector? sequence)
        (list->vector (list-sort less? (vector->list sequence)))
        (list-sort less? sequence))))

;; ---- vectors and strings

(define (vector-map f . vectors) (list->vector (apply map f (map vector->list vectors))))
(define (vector-for-each f . vectors) (apply for-each f (map vector->list vectors)))
(define (string-map f . strings) (list->string (apply map f (map string->list strings))))
(define (string-for-each f . strings) (apply for-each f (map string->list strings)))
(define (string-count string in?) (count in? (string->list string)))
(define (vector-binary-search vector key compare)
  (let loop ((low 0) (high (- (vector-length vector) 1)))
    (and (<= low high)
         (let* ((middle (quotient (+ low high) 2)) (order (compare (vector-ref vector middle) key)))
           (cond ((= order 0) middle)
                 ((< order 0) (loop (+ middle 1) high))
                 (else (loop low (- middle 1))))))))
(define (string-join strings . separator)
  (if (null? strings)
      ""
      (let ((between (if (null? separator) " " (car separator))))
        (apply string-append
               (car strings)
               (append-map (lambda (string) (list between string)) (cdr strings))))))

;; ---- comparisons of any number

(define (%all-same? same? items)
  (or (null? items)
      (every (lambda (item) (same? (car items) item)) (cdr items))))
(define (boolean=? . items) (%all-same? eq? items))
(define (symbol=? . items) (%all-same? eq? items))
(define (lcm . items)
  (fold (lambda (a b) (if (= (* a b) 0) 0 (quotient (abs (* a b)) (gcd a b)))) 1 items))
(define (square x) (* x x))
(define (exact-rational? x) (and (exact? x) (rational? x)))
(define complex? number?)
(define real? number?)
(define inexact->exact exact)
(define exact->inexact inexact)
(define (inexact? x) (not (exact? x)))
(define (finite? x) (rational? x))
(define (infinite? x) (and (not (rational? x)) (not (nan? x))))
(define (floor/ a b) (values (floor-quotient a b) (floor-remainder a b)))
(define (truncate/ a b) (values (quotient a b) (remainder a b)))
(define (exact-integer-sqrt-floor n) (call-with-values (lambda () (exact-integer-sqrt n)) (lambda (s r) s)))
(define (1+ n) (+ n 1))
(define (-1+ n) (- n 1))
(define (add1 n) (+ n 1))
(define (sub1 n) (- n 1))

;; ---- hash tables

(define %none (list 'none))
(define (hash-table-ref table key . rest)
  (let ((value (%hash-table-ref table key %none)))
    (cond ((not (eq? value %none))
           (if (and (pair? rest) (pair? (cdr rest))) ((cadr rest) value) value))
          ((pair? rest) ((car rest)))
          (else (error "hash-table-ref: no such key:" key)))))
(define (hash-table-update! table key f . default)
  (hash-table-set! table key (f (apply hash-table-ref table key default))))
(define (hash-table-update!/default table key f default)
  (hash-table-set! table key (f (%hash-table-ref table key default))))
(define (hash-table-walk table f)
  (for-each (lambda (pair) (f (car pair) (cdr pair))) (hash-table->alist table)))
(define (hash-table-fold table f state)
  (fold (lambda (pair state) (f (car pair) (cdr pair) state)) state (hash-table->alist table)))
(define (hash-table-copy table . mutable)
  (let ((copy (make-hash-table)))
    (hash-table-walk table (lambda (key value) (hash-table-set! copy key value)))
    copy))
(define (alist->hash-table alist . rest)
  (let ((table (apply make-hash-table rest)))
    (for-each (lambda (pair)
                (if (not (hash-table-exists? table (car pair)))
                    (hash-table-set! table (car pair) (cdr pair))))
              alist)
    table))
(define make-equal-hash-table make-hash-table)
(define hash-table-count hash-table-size)
(define string-hash hash)
(define equal-hash hash)

;; ---- ports

(define (call-with-port port f)
  (let ((result (f port)))
    (close-port port)
    result))
(define (call-with-output-string f)
  (let ((port (open-output-string)))
    (f port)
    (get-output-string port)))
(define (with-output-to-string thunk)
  (let ((port (open-output-string)))
    (parameterize ((current-output-port port)) (thunk))
    (get-output-string port)))
(define (call-with-input-file name f) (call-with-port (open-input-file name) f))
(define (call-with-output-file name f) (call-with-port (open-output-file name) f))
(define (with-output-to-file name thunk)
  (call-with-output-file name
    (lambda (port) (parameterize ((current-output-port port)) (thunk)))))
(define (with-input-from-file name thunk)
  (call-with-input-file name
    (lambda (port) (parameterize ((current-input-port port)) (thunk)))))
(define (current-error-port) (current-output-port))
(define (load name) (for-each eval (%read-file name)))
(define (interaction-environment) 'global)
(define (environment . names) 'global)
(define (features) '(r7rs ratios full-unicode standstill))

;; ---- threads

(define (with-mutex mutex thunk)
  (dynamic-wind
   (lambda () (mutex-lock! mutex))
   thunk
   (lambda () (mutex-unlock! mutex))))
(define (runtime) (/ (current-jiffy) 1e9))

;; ---- guardians, as Chez Scheme has them: (g object) registers, and (g) gives a dead object back

(define (make-guardian)
  (let ((dead (%make-guardian)))
    (case-lambda
      (() (%guardian-next dead))
      ((object) (%guardian-register! dead object)))))
