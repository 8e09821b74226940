/* The C side of `cargo bench -p standstill-capi`: one measurement a run, printed as nanoseconds an object.
 *
 *   objects create static|heap      make, track and release a two-field object, with a deallocator in C
 *   objects create generic          the same by the generic allocator, which tracks, and the generic deallocator
 *   objects collect static|heap     full collection of a binary tree with parent links, all of it held
 */
#include <standstill.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CREATED 2000000
#define DEPTH 20

typedef struct {
    PyObject_HEAD
    PyObject *first, *second;
} Pair;

typedef struct {
    PyObject_HEAD
    PyObject *left, *right, *parent;
} Tree;

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int is_heap_type, is_generic;

static int pair_traverse(PyObject *self, visitproc visit, void *arg)
{
    Pair *pair = (Pair *)self;
    if (is_heap_type)
        Py_VISIT(Py_TYPE(self));
    Py_VISIT(pair->first);
    Py_VISIT(pair->second);
    return 0;
}

static int pair_clear(PyObject *self)
{
    Pair *pair = (Pair *)self;
    Py_CLEAR(pair->first);
    Py_CLEAR(pair->second);
    return 0;
}

static void pair_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    pair_clear(self);
    type->tp_free(self);
    if (is_heap_type)
        Py_DECREF((PyObject *)type);
}

static int tree_traverse(PyObject *self, visitproc visit, void *arg)
{
    Tree *tree = (Tree *)self;
    if (is_heap_type)
        Py_VISIT(Py_TYPE(self));
    Py_VISIT(tree->left);
    Py_VISIT(tree->right);
    Py_VISIT(tree->parent);
    return 0;
}

static int tree_clear(PyObject *self)
{
    Tree *tree = (Tree *)self;
    Py_CLEAR(tree->left);
    Py_CLEAR(tree->right);
    Py_CLEAR(tree->parent);
    return 0;
}

static void tree_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tree_clear(self);
    type->tp_free(self);
    if (is_heap_type)
        Py_DECREF((PyObject *)type);
}

static PyTypeObject Pair_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "bench.Pair",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
    .tp_dealloc = pair_dealloc,
};

static PyTypeObject Tree_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "bench.Tree",
    .tp_basicsize = sizeof(Tree),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = tree_traverse,
    .tp_clear = tree_clear,
    .tp_dealloc = tree_dealloc,
};

static PyTypeObject *make(const char *name, int size, traverseproc traverse, inquiry clear, destructor dealloc)
{
    PyType_Slot slots[4];
    PyType_Spec spec;
    slots[0].slot = Py_tp_traverse;
    memcpy(&slots[0].pfunc, &traverse, sizeof traverse);
    slots[1].slot = Py_tp_clear;
    memcpy(&slots[1].pfunc, &clear, sizeof clear);
    slots[2].slot = Py_tp_dealloc;
    memcpy(&slots[2].pfunc, &dealloc, sizeof dealloc);
    slots[3].slot = 0;
    slots[3].pfunc = NULL;
    spec.name = name;
    spec.basicsize = size;
    spec.itemsize = 0;
    spec.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    spec.slots = slots;
    return (PyTypeObject *)PyType_FromSpec(&spec);
}

static PyObject *build(PyTypeObject *type, int depth)
{
    Tree *tree = (Tree *)type->tp_alloc(type, 0);
    if (tree != NULL && depth > 1) {
        tree->left = build(type, depth - 1);
        ((Tree *)tree->left)->parent = Py_NewRef((PyObject *)tree);
        tree->right = build(type, depth - 1);
        ((Tree *)tree->right)->parent = Py_NewRef((PyObject *)tree);
    }
    return (PyObject *)tree;
}

static int create(PyTypeObject *type)
{
    double begun = now();
    int i;
    for (i = 0; i < CREATED; i++) {
        Pair *pair = (Pair *)type->tp_alloc(type, 0);
        if (pair == NULL)
            return 1;
        if (!is_generic)
            PyObject_GC_Track((PyObject *)pair);
        Py_DECREF((PyObject *)pair);
    }
    printf("%f\n", (now() - begun) / CREATED);
    return 0;
}

static int collect(PyTypeObject *type)
{
    double best = 0, objects = (double)((1 << DEPTH) - 1);
    int i;
    PyObject *tree = build(type, DEPTH);
    for (i = 0; i < 5; i++) {
        double begun = now(), took;
        if (standstill_gc_collect(2) != 0)
            return 1;
        took = now() - begun;
        if (best == 0 || took < best)
            best = took;
    }
    printf("%f\n", best / objects);
    Py_DECREF(tree);
    return standstill_gc_collect(2) == (1 << DEPTH) - 1 ? 0 : 1;
}

int main(int argc, char **argv)
{
    standstill_heap_options options;
    standstill_heap *heap;
    PyTypeObject *pair, *tree;
    if (argc != 3)
        return 2;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.workers = 1;
    options.checked = 0;
    heap = standstill_heap_new(&options);
    if (heap == NULL || standstill_attach(heap) != 0) {
        fprintf(stderr, "objects: no heap\n");
        return 2;
    }
    PyGC_Disable();
    is_heap_type = strcmp(argv[2], "heap") == 0;
    is_generic = strcmp(argv[2], "generic") == 0;
    if (is_heap_type) {
        pair = make("bench.Pair", sizeof(Pair), pair_traverse, pair_clear, pair_dealloc);
        tree = make("bench.Tree", sizeof(Tree), tree_traverse, tree_clear, tree_dealloc);
    } else {
        if (is_generic)
            Pair_Type.tp_dealloc = NULL;
        pair = PyType_Ready(&Pair_Type) == 0 ? &Pair_Type : NULL;
        tree = PyType_Ready(&Tree_Type) == 0 ? &Tree_Type : NULL;
    }
    if (pair == NULL || tree == NULL) {
        fprintf(stderr, "objects: %s\n", standstill_error_message());
        return 2;
    }
    return strcmp(argv[1], "create") == 0 ? create(pair) : collect(tree);
}
